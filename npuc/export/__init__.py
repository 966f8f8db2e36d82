"""Shared by all exports: text of C sources, and the names of networks in firmware."""
