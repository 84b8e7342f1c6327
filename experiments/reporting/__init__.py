"""Reports of runs: collected numbers, figures, and one self-contained page of them."""
