"""Who holds which examples: allocation, schemes, tables and pictures; imports data sets."""
