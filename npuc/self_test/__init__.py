"""Self-tests of exports: stored samples, and a comparison of a device's results with simulated ones."""
