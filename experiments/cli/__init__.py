"""The command line, one command group a file; imports everything below."""
