"""Operators that a machine lacks, as operators that it has. Targets choose from these."""
