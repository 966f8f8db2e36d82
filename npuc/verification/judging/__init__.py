"""Task metrics: the kind of a network's outputs and their accuracy: classes, boxes, sequences, values."""
