"""Calibration: histograms over samples, clipping methods, and a cache."""
