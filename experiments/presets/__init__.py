"""Experiment files that ship with the package, named by what they run."""
