"""Patterns of the passes' own tests inside other networks: as they are, or with one thing about them changed.

`patterns.jsonl` has one pattern a line, as `python -m tests.graphs.recording` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npuc.ir import Array, Attr, Node
from tests.graphs.drawing import Drawing, Shape, renamed

FILE = Path(__file__).parent / "patterns.jsonl"

ALIKE = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Relu", "LeakyRelu", "Abs", "Neg", "Tanh", "Sigmoid", "Softsign"),
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"),
    ("MaxPool", "AveragePool"),
    ("GlobalAveragePool", "GlobalMaxPool"),
)
"""Operators that stand for one another when a pattern is changed."""
FLAGS = ("keepdims", "ceil_mode", "count_include_pad")


@cache
def patterns() -> tuple[Mapping[str, Any], ...]:
    """All patterns."""
    return tuple(json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines())


def splice(net: Drawing) -> None:
    """Puts a pattern into the network; its inputs are tensors of the network, brought into shape."""
    pattern = net.pick(patterns())
    names: dict[str, str] = {}
    for name, (dtype, shape) in pattern["inputs"].items():
        found = _source(net, tuple(shape)) if dtype == "float32" else None
        if found is None:
            return
        names[name] = found
    changed = net.number(0, len(pattern["nodes"]) - 1) if net.chance(0.5) else -1
    for name, entry in pattern["constants"].items():
        value = _value(net, entry)
        if changed >= 0 and net.chance(0.15) and value.dtype == np.float32:
            value = _changed_constant(net, value)
        names[name] = net.constant(value)
    for position, (op, inputs, outputs, attrs) in enumerate(pattern["nodes"]):
        node = Node(op, tuple(inputs), tuple(outputs), {key: _attr(value) for key, value in attrs.items()})
        if position == changed:
            node = _changed(net, node)
        number = len(net.nodes)
        fresh = {name: f"t{number}" + (f"_{at}" if at else "") for at, name in enumerate(outputs) if name}
        made = replace(renamed(node, {**names, **fresh}), name=f"n{number}", sources=(f"n{number}",))
        if not net.nodes_of(made):
            return
        names |= fresh


def _attr(value: Any) -> Attr:
    return tuple(value) if isinstance(value, list) else value


def _source(net: Drawing, shape: Shape) -> str | None:
    """A tensor of the shape: one that is there, one reshaped, cut or reduced to it, or a new input."""
    known = net.alike(shape)
    if known is not None and net.chance(0.8):
        return known
    same_size = [
        name for name in net.computed if net.types[name].size == prod(shape) and net.types[name].dtype == "float32"
    ]
    if same_size and net.chance(0.7):
        return net.node("Reshape", net.pick(same_size), shape=shape)
    if len(net.inputs) < 4:
        name = net.input(shape)
        return (net.node(net.pick(("Relu", "Tanh", "Neg")), name) or name) if net.chance(0.3) else name
    return known


def _value(net: Drawing, entry: Mapping[str, Any]) -> Array:
    shape = tuple(entry["shape"])
    if "values" in entry:
        return np.array(entry["values"], entry["dtype"]).reshape(shape)
    low, high = entry["range"]
    return net.random.uniform(low, high, shape).astype(entry["dtype"])


def _changed_constant(net: Drawing, value: Array) -> Array:
    """The same constant with axes of extent 1 more or fewer, negative, wider, or with one element changed."""
    kind = net.number(0, 5)
    if kind == 0:
        return value[None]
    if kind == 1 and value.ndim and value.shape[0] == 1:
        return value[0]
    if kind == 2:
        return -value
    if kind == 3 and value.ndim > 1:
        return np.ascontiguousarray(np.swapaxes(value, 0, net.number(0, value.ndim - 1)))
    if kind == 4 and value.ndim:
        return np.repeat(value, 2, axis=net.number(0, value.ndim - 1)) if value.size < 200 else value
    changed = value.copy()
    if changed.size:
        changed.flat[net.number(0, changed.size - 1)] += 0.25
    return changed


def _changed(net: Drawing, node: Node) -> Node:
    """The node with one attribute, its operator, or its operands changed; it may be illegal then."""
    family = next((each for each in ALIKE if node.op in each), ())
    if family and net.chance(0.25):
        attrs = {"alpha": 0.2} if (op := net.pick(family)) == "LeakyRelu" else node.attrs
        return replace(node, op=op, attrs=attrs)
    if len(node.inputs) == 2 and net.chance(0.25):
        return replace(node, inputs=net.pick((node.inputs[::-1], node.inputs[:1] * 2)))
    keys = sorted(node.attrs)
    if not keys:
        return node
    key = net.pick(keys)
    return replace(node, attrs={**node.attrs, key: _changed_attr(net, key, node.attrs[key])})


def _changed_attr(net: Drawing, key: str, value: Attr) -> Attr:
    if key in FLAGS:
        return 0 if value else 1
    if key == "perm" and isinstance(value, tuple):
        return tuple(int(axis) for axis in net.random.permutation(len(value)))
    if key == "shape" and isinstance(value, tuple):
        return tuple(int(extent) for extent in net.random.permutation(np.array(value, np.int64)))
    if isinstance(value, tuple) and value:
        at = net.number(0, len(value) - 1)
        return (*value[:at], value[at] + net.pick((-1, 1, 1)), *value[at + 1 :])
    if isinstance(value, int):
        return value + net.pick((-1, 1))
    return value * net.pick((-1.0, 2.0, 0.5)) if isinstance(value, float) else value
