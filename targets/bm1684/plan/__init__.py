"""Addresses of buffers, and transfers beside computations."""
