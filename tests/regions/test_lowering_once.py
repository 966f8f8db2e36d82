"""A target lowers every part once: nothing is tried before, and only what a refusal touches is done again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

import npuc
from npuc.account import account_of
from npuc.errors import DoesNotFit, Problem
from npuc.ir import Graph
from npuc.registry import target
from tests.onnx_models import parse

W = {"w": (8, 8, 3, 3), "v": (8, 8, 3, 3)}
CONV = "Conv <pads = [1,1,1,1]>"
WHOLE = f"g (float[1,8,8,8] x) => (float[1,8,8,8] y) {{ a = {CONV} (x, w)\n b = Relu(a)\n y = {CONV} (b, v) }}"
DIVIDED = f"g (float[1,8,8,8] x) => (float[1,8,8,8] y) {{ a = {CONV} (x, w)\n b = Sin(a)\n y = {CONV} (b, v) }}"


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, ...]]:
    """How often each part was lowered for easynpu, by the ONNX nodes in it."""
    found: Counter[tuple[str, ...]] = Counter()
    kind = type(target("easynpu"))
    lower = kind.lower

    def counted(self: Any, graph: Graph, *args: Any, **options: Any) -> Any:
        found[tuple(dict.fromkeys(source for node in graph.nodes for source in node.sources))] += 1
        return lower(self, graph, *args, **options)

    monkeypatch.setattr(kind, "lower", counted)
    return found


@pytest.mark.parametrize(("text", "parts"), [(WHOLE, 1), (DIVIDED, 2)], ids=["whole", "in parts"])
def test_every_part_is_lowered_once(lowered: Counter[tuple[str, ...]], text: str, parts: int) -> None:
    npuc.compile(parse(text, **W), "easynpu", calibration="synthetic", level=0)
    assert [*lowered.values()] == [1] * parts


def test_only_parts_around_a_late_refusal_are_lowered_again(
    lowered: Counter[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(target("easynpu"))
    lower = kind.lower

    def too_small(self: Any, graph: Graph, *args: Any, **options: Any) -> Any:
        program = lower(self, graph, *args, **options)
        for node in graph.nodes:
            if "last" in node.sources:
                raise DoesNotFit.of([Problem("E302", "it does not fit", "last", "Conv")])
        return program

    monkeypatch.setattr(kind, "lower", too_small)
    model = parse(
        DIVIDED.replace("y = Conv", "c = Conv").replace("(b, v) }", f"(b, v)\n y = {CONV} (c, w) }}"), **W
    )
    for node, name in zip(model.graph.node, ("first", "sine", "third", "last"), strict=True):
        node.name = name
    program = npuc.compile(model, "easynpu", calibration="synthetic", level=0)
    found = [(each.place, each.node) for each in account_of(program.program.manifest)]
    assert found == [("npu", "first"), ("host", "sine"), ("npu", "third"), ("host", "last")]
    assert lowered == {("first",): 1, ("third", "last"): 1, ("third",): 1}


def test_npuc_check_lowers_once_too(lowered: Counter[tuple[str, ...]], tmp_path: Path) -> None:
    onnx.save(parse(DIVIDED, **W), tmp_path / "m.onnx")
    assert [each.op for each in npuc.check(tmp_path / "m.onnx", "easynpu")] == ["Sin"]
    assert [*lowered.values()] == [1, 1]
