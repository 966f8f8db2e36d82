"""Constants, duplicates, and nodes that only change the form of a tensor."""
