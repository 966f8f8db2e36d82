"""What every target shows of a program: listings, annotated images, activity over time."""
