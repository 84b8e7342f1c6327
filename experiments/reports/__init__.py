"""Reports of runs: collected numbers, figures, and self-contained pages of them; imports runs."""
