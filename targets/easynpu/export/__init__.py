"""A program in other forms: listings, files for hardware, C."""
