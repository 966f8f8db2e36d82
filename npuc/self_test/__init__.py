"""Self tests of exports: stored samples, and what compares a device's results with those that npuc simulated."""
