"""Samples for calibration, runs and verification: from files, in blocks, or synthetic."""
