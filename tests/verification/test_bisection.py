"""`npuc verify --bisect` names the layer that a compiler computes wrongly, although its references agree with it.

Faults are planted while the integer network is made, so that words, network and proof share them: in a layer's
weights, bias, shift or activation, or in what is told of its result's zero point or scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partialmethod
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import npuc
from npuc.evidence import read_graph
from npuc.ir import Node
from npuc.models.detector import detector, scenes
from npuc.models.digits import FOLDER
from npuc.models.networks import ds_cnn, resnet8
from npuc.quantize.network.construction import GraphBuilder, Quantised
from npuc.verification.bisection import largest_loss

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet8": resnet8,
    "ds_cnn": ds_cnn,
    "detector": detector,
}
KINDS = ("weight", "bias", "shift", "activation", "scale", "zero point")
ADD, RESULT = GraphBuilder.add, GraphBuilder.result


@dataclass
class Fault:
    """A fault of the n-th convolution or fully connected layer of a network that is being made."""

    kind: str
    number: int
    seen: int = 0
    at: Node | None = None
    """The layer, once the fault is planted; layers without a bias or an activation have none to spoil."""

    def add(self, builder: GraphBuilder, node: Node) -> None:
        constants = {
            name: np.array(builder.constants[name]) for name in node.inputs[1:] if name in builder.constants
        }
        held = {name: each for name, each in constants.items() if each.size > 1}
        if "Conv" in node.op and held and not node.attrs.get("average"):
            if self.seen == self.number:
                node = self._spoilt(builder, node, held)
            self.seen += 1
        ADD(builder, node)

    def _spoilt(self, builder: GraphBuilder, node: Node, held: dict[str, Any]) -> Node:
        weights = max(held, key=lambda name: held[name].size)
        shifts = [name for name in held if name.endswith("/shift")]
        others = [name for name in held if name not in (weights, *shifts)]
        relu = next((key for key, value in node.attrs.items() if key.endswith("relu") and value), None)
        if self.kind == "weight":
            builder.constants[weights] = np.roll(held[weights], 1, axis=0)
        elif self.kind == "bias" and others:
            moved = held[others[0]] + np.abs(held[others[0]]).max()
            builder.constants[others[0]] = moved.astype(held[others[0]].dtype)
        elif self.kind == "shift" and shifts:
            builder.constants[shifts[0]] = held[shifts[0]] - 1
        elif self.kind == "activation" and relu:
            node = node.with_attrs(**{relu: 0})
        elif self.kind not in ("zero point", "scale"):
            return node
        self.at = node
        return node

    def result(self, builder: GraphBuilder) -> Quantised:
        made = RESULT(builder)
        if self.at is None or self.at.output not in made.scales:
            return made
        name = self.at.output
        if self.kind == "scale":
            return replace(made, scales={**made.scales, name: made.scales[name] * 1.5})
        moved = {name: made.zeros.get(name, 0) + 20} if self.kind == "zero point" else {}
        return replace(made, zeros={**made.zeros, **moved})


def _add(builder: GraphBuilder, fault: Fault, node: Node) -> None:
    fault.add(builder, node)


def _result(builder: GraphBuilder, fault: Fault) -> Quantised:
    return fault.result(builder)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Each network's file and samples of its input."""
    folder, found = tmp_path_factory.mktemp("networks"), dict[str, tuple[Path, Any]]()
    for name, build in NETWORKS.items():
        model = build()
        onnx.save(model, folder / f"{name}.onnx")
        shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
        drawn = np.random.default_rng(0).standard_normal((4, *shape)).astype(np.float32)
        pixels = scenes(4, (5, 5)).pixels.reshape(-1, *shape) if name == "detector" else drawn
        found[name] = folder / f"{name}.onnx", pixels
    return found


def _blamed(model: Path, x: Any, target: str, fault: Fault, patch: pytest.MonkeyPatch) -> dict[str, Any] | None:
    """The layer that is named for a fault."""
    with patch.context() as planted:
        planted.setattr(GraphBuilder, "add", partialmethod(_add, fault))
        planted.setattr(GraphBuilder, "result", partialmethod(_result, fault))
        program = npuc.compile(str(model), target, calibration=x, precision="int8", level="0", proof="off")
    if fault.at is None:
        return None
    graph = read_graph(program.program)
    return largest_loss(npuc.verify(str(model), program, x), graph)


def _expect_named(model: Path, x: Any, target: str, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    found = _blamed(model, x, target, fault, patch)
    if found is not None:
        assert fault.at is not None
        assert found["tensor"].endswith(fault.at.outputs), f"{fault.kind} of {fault.at.name}: {found}"


def _kinds(target: str) -> tuple[str, ...]:
    """BM1684 has no zero points: -128 says that its words are unsigned."""
    return KINDS[: 5 if target == "bm1684" else 6]


LAYERS = [
    ("resnet8", "easynpu", 0), ("ds_cnn", "easynpu", 6), ("detector", "easynpu", 1),
    ("detector", "nvdla-small", 0), ("ds_cnn", "bm1684", 3),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "target", "number", "kind"), [(*r, kind) for r in LAYERS for kind in _kinds(r[1])]
)
def test_a_fault_of_the_compiler_is_named_by_its_layer(
    networks: dict[str, tuple[Path, Any]],
    name: str,
    target: str,
    number: int,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _expect_named(*networks[name], target, Fault(kind, number), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    ("name", "target"), [("resnet8", "easynpu"), ("ds_cnn", "bm1684"), ("detector", "nvdla-small")]
)
def test_faults_of_every_layer_in_turn_are_named(
    networks: dict[str, tuple[Path, Any]], name: str, target: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds of faults in turn too, from the first or the fourth."""
    for number in count():
        fault = Fault(_kinds(target)[(first + number) % len(_kinds(target))], number)
        _expect_named(*networks[name], target, fault, monkeypatch)
        if fault.seen <= number:  # the network has no such layer
            return


def test_a_sum_that_its_own_pass_limits_afterwards_is_no_loss() -> None:
    """Before, it was compared with the ReLU's result: -4.3 dB, which --bisect blamed in a network of 39 dB."""
    model, samples = FOLDER / "digits.onnx", np.load(FOLDER / "digits_test.npz")["x"][:64]
    made = npuc.compile(model, "nvdla-small", calibration=samples)
    rows = npuc.verify(model, made, samples)["layers"]
    before, _ = (row for row in rows if row["name"] == "n4_Relu")
    assert before["bit_exact"] and before["entire"] is before["single"] is None
    assert all(row[view]["sqnr_db"] > 30 for row in rows if row is not before for view in ("entire", "single"))
