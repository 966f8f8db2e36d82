"""Host regions as C: a small library of operators, and a function for each region."""
