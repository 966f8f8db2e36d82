"""The plan of a network: regions, order, strips, grids of tiles, and the place of every buffer."""
