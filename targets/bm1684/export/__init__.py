"""A program for the vendor's SDK."""
