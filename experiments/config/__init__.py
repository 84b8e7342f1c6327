"""Experiment files: sections, registry, names and model files; imports inference and models."""
