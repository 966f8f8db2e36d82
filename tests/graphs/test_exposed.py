"""Patterns of exporters with every inner tensor an output, or read once more: right, or left to the host."""

from __future__ import annotations

import pytest

from npuc.frontend.dynamic import without_dynamic_quantisation
from tests.graphs.compiling import Case
from tests.graphs.exposing import PATTERNS, check, exposed, inner, network

DYNAMIC = [name for name in PATTERNS if "dynamic" in name]


@pytest.mark.parametrize("case", [Case("bm1684", "fp32"), Case("easynpu", "int8")], ids=str)
@pytest.mark.parametrize("how", ["as they are", "outputs", "read"])
@pytest.mark.parametrize("name", PATTERNS)
def test_all_tensors_of_a_pattern_may_be_needed(name: str, how: str, case: Case) -> None:
    model = network(name)
    outputs, read = (inner(model) if how == each else () for each in ("outputs", "read"))
    assert check(exposed(model, outputs, read), case, name) == "ok"


TENSORS = [(name, each, how) for name in DYNAMIC for each in inner(network(name)) for how in ("output", "read")]
FLOATS = {("a dynamic product", "p"), ("a dynamic convolution", "p"), ("dynamic values", "d")}
"""By hand: what no power of the scale is left in. Nothing else may be read in place of the integers."""


@pytest.mark.parametrize(("name", "tensor", "how"), TENSORS)
def test_a_dynamic_scale_is_left_where_anything_else_is_read(name: str, tensor: str, how: str) -> None:
    model = exposed(network(name), [tensor] if how == "output" else [], [tensor] if how == "read" else [])
    kept = [node.op_type for node in without_dynamic_quantisation(model).graph.node]
    free = (name, tensor) in FLOATS or (name, tensor) == ("two products of dynamic values", "g")
    assert ("DynamicQuantizeLinear" in kept) is not free
    assert check(model, Case("bm1684", "fp32"), name) == "ok"
