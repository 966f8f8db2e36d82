"""Attributes of any operator, drawn from its declaration: within their ranges, most often at an end of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from npuc.ir import ABSENT, Attr, Node
from npuc.ops import OPS
from npuc.ops.attributes import COUNTS, Attribute
from tests.graphs.drawing import Drawing

MOST = 4
"""Of integers without an upper limit, and of those with a large one."""
SPREAD = 2.0
"""Of numbers without limits."""


def declared(net: Drawing) -> object:
    """A node of the network once more, with other attributes that its operator's declaration allows."""
    known = [node for node in net.nodes if OPS[node.op].attributes]
    if not known:
        return None
    node = net.pick(known)
    types = [net.types[name] if name else ABSENT for name in node.inputs]
    chosen = attributes(net, node, len(types[0].shape))
    draw = OPS[node.op].draw
    if draw is not None and net.chance(0.5):
        chosen |= dict(draw(Random(net.number(0, 1 << 30)), types))
    number = len(net.nodes)
    outputs = tuple(f"t{number}" + (f"_{at}" if at else "") for at in range(len(node.outputs)))
    made = replace(node, outputs=outputs, attrs=chosen, name=f"n{number}", sources=(f"n{number}",))
    return net.nodes_of(made)


def attributes(net: Drawing, node: Node, rank: int) -> dict[str, Attr]:
    """The node's attributes, one or two of them drawn anew; npuc's own are left out."""
    rows = [each for each in OPS[node.op].attributes if not each.internal]
    chosen: dict[str, Attr] = dict(node.attrs)
    for each in (net.pick(rows) for _ in range(net.number(1, 2) if rows else 0)):
        chosen[each.name] = _value(net, each, rank)
    return chosen


def _value(net: Drawing, row: Attribute[Any], rank: int) -> Attr:
    if row.choices:
        return net.pick(row.choices)
    match row.kind:
        case "flag":
            return net.number(0, 1)
        case "axis":
            return net.number(0, rank - 1)
        case "axes":
            return tuple(axis for axis in range(rank) if net.chance(0.4))
        case "permutation":
            return tuple(int(axis) for axis in net.random.permutation(rank))
        case "integer":
            return _integer(net, row)
        case "number":
            return _number(net, row)
        case "integers":
            return tuple(_integer(net, row) for _ in range(_count(net, row, rank)))
        case "numbers":
            return tuple(_number(net, row) for _ in range(_count(net, row, rank)))
        case _:
            return ""


def _count(net: Drawing, row: Attribute[Any], rank: int) -> int:
    if row.per.isdigit():
        return int(row.per)
    return max(COUNTS[row.per](rank), 0) if row.per else net.number(0, rank)


def _integer(net: Drawing, row: Attribute[Any]) -> int:
    low = int(row.low) if math.isfinite(row.low) else -MOST
    high = min(int(row.high), low + 2 * MOST) if math.isfinite(row.high) else low + MOST
    return net.pick((low, low, low + 1, net.number(low, high))) if low + 1 <= high else low


def _number(net: Drawing, row: Attribute[Any]) -> float:
    ends: Sequence[float] = [each for each in (row.low, row.high) if math.isfinite(each)]
    if ends and net.chance(0.4):
        return float(net.pick(ends))
    low = row.low if math.isfinite(row.low) else -SPREAD
    high = row.high if math.isfinite(row.high) else low + 2 * SPREAD
    return float(net.random.uniform(low, high))
