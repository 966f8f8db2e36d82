"""Rewrites of operators that a machine lacks to operators that it has. Targets choose from these."""
