"""Limits that no valid model exceeds: beyond them a file is damaged or hostile, and would only fill the memory."""

from __future__ import annotations

LARGEST_TENSOR = 2**31
"""Elements of a tensor, and of each of its dimensions."""

LARGEST_CONSTANT = 2**28
"""Elements of a computed constant."""
