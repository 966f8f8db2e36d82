"""Operators that are merged into their neighbours."""
