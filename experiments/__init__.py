"""What people run: the command line, experiment files, benchmarks."""
