"""A legal node for every declared operator: from its patterns, with what they cannot say written out here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import Op, Operators, build
from npuc.ops.declaration import tokens
from npuc.targets.easynpu.layers.nodes import OPERATORS as EASYNPU
from npuc.targets.nvdla.arithmetic.operators import OPERATORS as NVDLA

TABLES: Mapping[str, Operators] = {
    **dict.fromkeys(EASYNPU, EASYNPU),
    **dict.fromkeys(NVDLA.keys() - EASYNPU, NVDLA),
}
"""Every operator of npuc and of its targets, with a table that has it."""

EXTENTS: Mapping[str, Any] = {
    "N": 1, "I": 2, "P": 3, "C": 4, "H": 6, "W": 6, "L": 6, "*S": (6,), "K": 3, "*T": (3,), "Hk": 3, "Wk": 3,
    "*X": (2, 4, 6), "*": (2, 4, 6), "M": 2, "E": 65, "O": 257, "G": 1,
}  # fmt: skip
POOL = {"kernel_shape": (2, 3), "strides": (2, 1), "pads": (1, 0, 0, 1)}
ATTRS: Mapping[str, Mapping[str, Any]] = {
    "Conv": {"group": 2, "pads": (1, 0, 1, 2), "activation": "Relu"},
    "ConvTranspose": {"strides": (2, 2), "output_padding": (1, 0)},
    "IntConv": {"group": 2, "pads": (1, 1, 1, 1), "padding": -3, "relu": 1}, "MaxPool": POOL,
    "AveragePool": {**POOL, "count_include_pad": 1}, "LRN": {"size": 3}, "Clip": {"min": -0.5, "max": 0.75},
    "Concat": {"axis": 1}, "Interleave": {"axis": 2}, "Split": {"axis": 1, "split": (4,)},
    "Slice": {"axes": (1, 2), "starts": (3, 1), "ends": (-1, 5), "steps": (-2, 1)},
    "Pad": {"pads": (0, 1, -1, 0, 2, 1), "mode": "reflect"}, "Reshape": {"shape": (8, 6)},
    "Transpose": {"perm": (2, 0, 1)}, "Expand": {"shape": (3, 2, 4, 6)}, "Gather": {"axis": 2},
    "Cast": {"to": "int32"}, "SpaceToDepth": {"blocksize": 2}, "DepthToSpace": {"blocksize": 2, "mode": "CRD"},
    "Resize": {"sizes": (2, 8, 9), "scales": (1.0, 2.0, 1.5), "mode": "linear"},
    "FakeQuantize": {"scale": 0.05, "zero_point": 3, "dtype": "int8"},
    **{key: {"axes": (0, 2), "keepdims": 0} for key in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")},
    **{key: {"axis": 1} for key in ("Softmax", "LogSoftmax", "ArgMax")},
    **{key: {"shift": 2} for key in ("IntAdd", "IntSum", "IntMul", "IntTable")},
    "NvConv": {"x1": (1, 3, 0, 0, 0, 1), "converter": (3, 5, 4), "pads": (1, 1, 1, 1), "padding": 2},
    "NvElementwise": {"x1": (0, 0, 0, 0, 0, 1), "x2": (1, 1, 1, 0, 3, 0), "converter": (0, 3, 2)},
    "NvAveragePool": {"kernel_shape": (2, 2), "reciprocals": (32768, 32768)},
    "NvLrn": {"size": 3, "le": (0.0, 8, 0.0, 0), "lo": (0.0, 8, 0.0, 0), "converter": (0, 1, 7)},
    "IntPixel": {"value": -5}, "IntReshape": {"perm": 2, "Hi": 6, "Wi": 6, "Ci": 4, "Ho": 6, "Wo": 6, "Co": 4},
}  # fmt: skip
SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "MatMul": {"b": (6, 5)},
    "PRelu": {"slope": (4, 1)},
    "Add": {"b": (4, 1)},
    "Interleave": {"inputs": (2, 4, 3)},
    "Gather": {"indices": (2, 2)},
    **{key: {"scale": (4,), "zero_point": (4,)} for key in ("QuantizeLinear", "DequantizeLinear")},
    "IntReshape": {"x": (1, 4, 6, 6)},
    "LRN": {"x": (1, 4, 6, 6)},
    "NvElementwise": {"x": (1, 4, 6, 6), "x2_alu": (4, 1, 1), "x2_mul": (4, 6, 6)},
    "NvConv": {"x1_alu": (3, 1, 1)},
}
DTYPES: Mapping[str, Mapping[str, str]] = {
    "Cast": {"x": "float32"},
    "NvConv": {"w": "int8", "x1_alu": "int16", "table": "int8"},
    "NvElementwise": {"x2_alu": "int16", "x2_mul": "int16"},
    "NvLrn": {"le": "int16", "lo": "int16"},
}
OPTIONAL = {"NvConv": ("x1_alu",), "NvElementwise": ("x2_alu", "x2_mul")}
"""Of these operators, the optional inputs that a node has; of others, all but variadic ones."""


@dataclass(frozen=True)
class Example:
    """A node with the types and values of its inputs; all inputs but data are constants."""

    row: Op
    node: Node
    types: tuple[TensorType, ...]
    values: Mapping[str, Array]

    def graph(self, node: Node | None = None) -> Graph:
        """The node, or another in its place, as a graph."""
        used = node or self.node
        fixed = self.row.inputs[1:] if self.row.name not in ("Add", "Concat", "Interleave") else ()
        constants = {each.name for each in fixed}
        fed = {
            name: type_ for name, type_ in zip(self.node.inputs, self.types, strict=True) if name not in constants
        }
        held = {name: value for name, value in self.values.items() if name in constants}
        return build("g", [used], {k: v for k, v in fed.items() if k}, used.outputs, held, TABLES[self.row.name])


def example(name: str) -> Example:
    """A legal node of an operator."""
    row = TABLES[name][name]
    attrs, shapes, dtypes = ATTRS.get(name, {}), SHAPES.get(name, {}), DTYPES.get(name, {})
    extents = {**EXTENTS, **{each.name: attrs.get(each.name, each.default) for each in row.attributes}}
    types: dict[str, TensorType] = {}
    random = np.random.default_rng(0)
    values: dict[str, Array] = {}
    for each in row.inputs:
        if each.optional and (each.variadic or each.name not in OPTIONAL.get(name, (each.name,))):
            types[""] = TensorType(())
            continue
        shape = shapes.get(each.name, _shape(each.shape, extents))
        dtype = dtypes.get(each.name, types[each.like].dtype if each.like else each.dtypes[0])
        for repeat in ("", "_more") if each.variadic else ("",):
            types[each.name + repeat] = TensorType(shape, dtype)
            values[each.name + repeat] = _values(random, shape, dtype, each.low, each.high)
    names = tuple(types)
    while names and not names[-1]:
        names = names[:-1]
    if name == "NvElementwise":  # the operands of the first stage are absent
        names = ("x", "", "", "x2_alu", "x2_mul")
    if name == "Gather":
        values["indices"] = np.array([[0, 5], [-1, 2]])
        types["indices"] = TensorType((2, 2), "int64")
    if name == "IntTable":
        values["starts"] = np.array([-128], np.int8)
    node = Node(name, names, tuple(each.name for each in row.outputs), attrs, "n", ("n",))
    return Example(row, node, tuple(types.get(each, TensorType(())) for each in names), values)


def _shape(pattern: str, extents: Mapping[str, Any]) -> tuple[int, ...]:
    shape: list[int] = []
    for token in tokens(pattern):
        if token[0].startswith("*"):
            shape.extend(extents[token[0]])
        else:
            shape.append(int(np.prod([int(each) if each.isdigit() else extents[each] for each in token])))
    return tuple(shape)


def _values(random: np.random.Generator, shape: tuple[int, ...], dtype: str, low: float, high: float) -> Array:
    """Numbers whose mean is not 0, within a parameter's range."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        least, most = max(low, limits.min, -100), min(high, limits.max, 120, low + 8 if high < 120 else 120)
        return np.asarray(random.integers(int(least), int(most) + 1, shape)).astype(dtype)
    return np.asarray(np.maximum(random.standard_normal(shape) + 0.25, low + 0.01)).astype(dtype)
