"""The operators of the IR: one declaration each, with legal forms, types, meaning in numpy and in ONNX.

`OPS` is the table; the rows stand in the modules of this package, grouped as in the ONNX operator list.
`ops.declaration` says what a row holds and what derives from it, `ops.attributes` has the attributes.
"""

from npuc.ops.declaration import Op, Parameter, bad_node, given
from npuc.ops.table import OPS, Operators, build, infer, rebuild, with_operators

__all__ = [
    "OPS",
    "Op",
    "Operators",
    "Parameter",
    "bad_node",
    "build",
    "given",
    "infer",
    "rebuild",
    "with_operators",
]
