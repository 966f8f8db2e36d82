"""Simulators that read only words and images: whole layers at once, or cycle by cycle."""
