"""What the host computes, as C: a small library of operators, and functions that call it."""
