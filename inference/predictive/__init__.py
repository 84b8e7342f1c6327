"""Posterior-predictive draws and their streaming summaries; imports engine and beliefs."""
