"""Runs: built from a configuration, kept in folders, resumed, predicted with; imports config and inference."""
