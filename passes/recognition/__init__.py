"""Recognition of operators that models write in many ways, as one canonical operator each."""
