"""Rescaling copies between operators that must share a scale. Targets choose from these."""
