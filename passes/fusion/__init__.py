"""Operators that become part of their neighbour."""
