"""Host computations as C: a small library of operators, and functions that call it."""
