"""What outputs are good for, and how good they are at it: classes, boxes, sequences, values."""
