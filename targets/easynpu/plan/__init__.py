"""The plan of a network: regions, order, strips, grids of tiles, and where every buffer lies."""
