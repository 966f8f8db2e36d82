"""Where the scales of integers change: copies between operators that share one. Targets choose from these."""
