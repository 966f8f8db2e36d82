"""The operators of the IR: one row each, with its shape rule and its meaning in numpy.

`OPS` is the table; the rows stand in the modules of this package, grouped as in the ONNX operator list.
"""

from npuc.ops import (
    activation,
    convolution,
    elementwise,
    linear,
    movement,
    normalisation,
    pooling,
    quantisation,
    reduction,
    resize,
)
from npuc.ops.table import OPS, Op, bad_node, build, infer, rebuild

__all__ = [
    "OPS",
    "Op",
    "activation",
    "bad_node",
    "build",
    "convolution",
    "elementwise",
    "infer",
    "linear",
    "movement",
    "normalisation",
    "pooling",
    "quantisation",
    "rebuild",
    "reduction",
    "resize",
]
