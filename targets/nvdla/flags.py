"""The options of a compilation that only NVDLA has."""

from npuc.flag import Flag

WEIGHTS = Flag(
    "weights",
    ("auto", "direct", "winograd", "sparse"),
    "Form of weights (NVDLA); auto: the fewest cycles, then bytes.",
)
"""A configuration has those values that its units compute."""
FLAGS = (WEIGHTS,)
