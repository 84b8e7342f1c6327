"""Measures of predictions: scores, calibration, selection, detection, resampling; imports errors and randomness."""
