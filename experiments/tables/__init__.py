"""Tables of methods by data sets: declared, run, collected, rendered; imports runs and reports."""
