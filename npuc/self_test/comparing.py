"""The C program that compares raw files with npuc's simulated results."""

from __future__ import annotations

from pathlib import Path

NAME = "npuc_compare.c"
FOLDER = "self_test"
"""The folder of an export's stored samples."""


def comparing() -> dict[str, bytes]:
    """The program's source, by file name."""
    return {NAME: (Path(__file__).parent / NAME).read_bytes()}
