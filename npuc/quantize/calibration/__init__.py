"""What values occur: histograms over calibration samples, clipping, and their cache."""
