"""Bootstrap cells, resampled sums and 95 % intervals of measures; imports the schema."""
