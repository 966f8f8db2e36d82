"""The program in C that compares raw files with what npuc simulated."""

from __future__ import annotations

from pathlib import Path

NAME = "npuc_compare.c"
FOLDER = "self_test"
"""Where the stored samples of an export lie."""


def comparing() -> dict[str, bytes]:
    """Its source, by file name."""
    return {NAME: (Path(__file__).parent / NAME).read_bytes()}
