"""One canonical operator for each of the many spellings."""
