"""Federated algorithms, one file a method, over the shared engine."""
