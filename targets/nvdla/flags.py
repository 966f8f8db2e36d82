"""The options of a compilation that only NVDLA has."""

from npuc.flag import Flag

WEIGHTS = Flag(
    "weights",
    ("auto", "direct", "winograd", "sparse"),
    "Form of convolution weights; auto: the fewest cycles, then the fewest bytes (NVDLA).",
)
"""Each configuration offers the values that its units support."""
FLAGS = (WEIGHTS,)
