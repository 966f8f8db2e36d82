"""The operators of the IR: one declaration each, with legal forms, types, and meaning in numpy and in ONNX.

`OPS` is the table; its rows are declared in the modules of this package, grouped as in the ONNX operator list. See
`ops.declaration` for the contents of a row and what derives from it, `ops.attributes` for the attributes.
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
