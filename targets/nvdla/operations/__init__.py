"""Hardware operations: surfaces, tiles, weight forms, and how many clocks they take side by side."""
