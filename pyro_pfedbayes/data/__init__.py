"""Data sets, array files, clients' shares and corruptions; imports errors and randomness."""
