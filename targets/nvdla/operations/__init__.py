"""Hardware operations: surfaces, tiles, weight forms, and the cycle model."""
