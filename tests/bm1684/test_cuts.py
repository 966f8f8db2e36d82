"""Maps with more rows, columns or channels than a call can have are computed in parts, and stay what they are."""

from __future__ import annotations

from typing import Any

import pytest

from npuc.targets.bm1684.network.cuts import CutMaps
from tests.passes.networks import assert_same_meaning, network, node, operators

CUT = CutMaps(most_channels=4, most_extent=8)
AROUND = (1, 1, 1, 1)
POOL: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": AROUND}
CASES: dict[str, tuple[tuple[int, ...], str, str, dict[str, Any], int, int]] = {
    "rows and columns": ((2, 3, 9, 20), "Conv", "x k b", {"pads": AROUND}, 8, 0),
    "as many as fit": ((1, 4, 8, 8), "Conv", "x wide b", {"pads": AROUND}, 1, 0),
    "one row more": ((1, 4, 9, 8), "Conv", "x wide b", {"pads": AROUND}, 2, 0),
    "a result with more rows": ((1, 3, 8, 8), "Conv", "x tall b", {"pads": (3, 0, 2, 0)}, 2, 0),
    "strides and dilations": ((1, 3, 30, 5), "Conv", "x k b", {"strides": (3, 2), "dilations": (2, 1)}, 5, 0),
    "input channels": ((2, 9, 5, 4), "Conv", "x many b", {"activation": "Relu", "pads": AROUND}, 3, 2),
    "channels of results": ((2, 3, 5, 4), "Conv", "x results more", {"activation": "Relu"}, 3, 0),
    "channels of all": ((2, 9, 5, 4), "Conv", "x apart more", {"group": 9, "pads": AROUND}, 3, 0),
    "channels of a maximum": ((1, 5, 9, 4), "MaxPool", "x", POOL, 4, 0),
    "columns of a mean": ((1, 2, 4, 17), "AveragePool", "x", POOL, 3, 0),
    "columns of a counting mean": ((1, 2, 4, 17), "AveragePool", "x", POOL | {"count_include_pad": 1}, 3, 0),
}  # fmt: skip
WEIGHTS = {
    "k": (4, 3, 3, 3), "wide": (4, 4, 3, 3), "tall": (4, 3, 4, 1), "many": (4, 9, 3, 3), "b": (4,),
    "results": (9, 3, 2, 2), "apart": (9, 1, 3, 3), "more": (9,),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_parts_within_the_extents_mean_the_same(case: str) -> None:
    shape, op, inputs, attrs, parts, sums = CASES[case]
    graph = network(
        shape, "y", node(op, inputs, "y", **attrs), **{name: WEIGHTS[name] for name in inputs.split()[1:]}
    )
    found = CUT(graph)
    assert_same_meaning(graph, found)
    computing = [each.op.partition("+")[0] for each in found.nodes]
    assert (computing.count(op), computing.count("Add")) == (parts, sums)
    maps = [name for each in found.nodes if each.op == op for name in (each.inputs[0], each.output)]
    assert all(found.shape(name)[1] <= 4 and max(found.shape(name)[2:]) <= 8 for name in maps)


@pytest.mark.parametrize(("op", "inputs", "attrs"), [
    ("Conv", "x long", {}), ("Conv", "x wide", {"pads": (3, 0, 0, 0)}), ("MaxPool", "x", POOL | {"ceil_mode": 1}),
    ("Conv", "x pairs", {"group": 3}),
])  # fmt: skip
def test_other_layers_stay(op: str, inputs: str, attrs: dict[str, Any]) -> None:
    """Windows longer than a part, in the padding alone, or at a ragged end; groups of several channels."""
    extents = {"long": (4, 6, 9, 1), "wide": (4, 6, 3, 3), "pairs": (6, 2, 1, 1)}
    shape = (1, 6, 5, 5) if "pairs" in inputs else (1, 3, 12, 5)
    given = {
        name: (extents[name][0], shape[1] // (attrs.get("group") or 1), *extents[name][2:])
        for name in inputs.split()[1:]
    }
    graph = network(shape, "y", node(op, inputs, "y", **attrs), **given)
    assert operators(CUT(graph)) == [op]
