"""Simulators that read words and images alone: whole layers at once, or cycle by cycle."""
