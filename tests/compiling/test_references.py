"""What onnxruntime cannot run, or runs otherwise each time, is proved by another evaluator or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import npuc
from npuc.errors import ModelError, NpucError
from npuc.onnx_files import standby
from npuc.reference import session
from tests.cli.process import npuc as command
from tests.onnx_models import network

FAST: Mapping[str, Any] = {"level": "0"}
TARGETS = ("easynpu", "nvdla-small", "nvdla-full/fp16", "bm1684", "bm1684/int8")


def _model(
    nodes: list[onnx.NodeProto], x: list[int], y: dict[str, Any], constants: dict[str, Any], opset: int = 15
) -> onnx.ModelProto:
    return network(nodes, x, constants, " ".join(y), opset)


def _random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.4


def _compiled(model: onnx.ModelProto, target: str, **options: Any) -> Any:
    name, _, precision = target.partition("/")
    given: dict[str, Any] = {"calibration": "synthetic", **FAST, **({"precision": precision} if precision else {})}
    return npuc.compile(model, name, **{**given, **options})


W = _random(3, 4, 2, 2)


def _scattered(x: Any, pads: int, extra: int) -> Any:
    """A transposed convolution by W with dilations of 2, in numpy; x: (N, 3, 6, 6)."""
    full = np.zeros((len(x), 4, 8 + extra, 8 + extra))
    for i, j in np.ndindex(2, 2):
        full[:, :, 2 * i : 2 * i + 6, 2 * j : 2 * j + 6] += np.einsum("nchw,co->nohw", x, W[:, :, i, j])
    return full[:, :, pads : full.shape[2] - pads, pads : full.shape[3] - pads]


def _transposed(pads: int, extra: int) -> onnx.ModelProto:
    attrs = {"dilations": [2, 2], "output_padding": [extra] * 2, "pads": [pads] * 4}
    extent = 8 + extra - 2 * pads
    return _model([helper.make_node("ConvTranspose", ["x", "w"], ["y"], "t", **attrs)], [1, 3, 6, 6],
                  {"y": [1, 4, extent, extent]}, {"w": W})  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("extra", [0, 1])
def test_padding_of_an_output_that_onnxruntime_refuses_is_computed_as_onnx_says(extra: int, target: str) -> None:
    """An extra row is below the dilation and not below the stride: onnxruntime and onnx's evaluator refuse it."""
    model, x = _transposed(1, extra), _random(4, 1, 3, 6, 6, seed=5) * 3
    program = _compiled(model, target, calibration={"x": x})
    found, wanted = program.run({"x": x})["y"], _scattered(x[:, 0], 1, extra)
    assert np.abs(found.reshape(wanted.shape) - wanted).max() <= 0.05 * np.abs(wanted).max()
    told = [each["reason"] for each in program.report.get("warnings", ()) if each["code"] == "W303"]
    assert bool(told) == bool(extra) and all("npuc's interpreter is the reference" in each for each in told)
    report = npuc.verify(model, program, {"x": x})
    assert report["status"] == "ok" and bool(report["reference"]) == bool(extra)


@pytest.mark.parametrize(("pads", "place"), [(2, "npu"), (3, None)])
def test_what_only_the_host_could_run_and_does_not_is_refused_by_its_node(
    pads: int, place: str | None, tmp_path: Path
) -> None:
    """BM1684 runs it with padding within the kernel, which is 3 elements wide with its dilation."""
    onnx.save(_transposed(pads, 1), tmp_path / "m.onnx")
    asked = ("compile", tmp_path / "m.onnx", "--target", "bm1684", "-O0", "-o", tmp_path / "out")
    if place:
        command(*asked).done()
        return
    said = command(*asked).refused("E105")
    assert "ConvTranspose 't': onnxruntime cannot run it: Computed output shape" in said
    assert "--proof off" in said and not (tmp_path / "out").exists()
    assert command(*asked, "--proof", "off").code == 0


@pytest.mark.parametrize("target", ["nvdla-small", "nvdla-full/fp16"])
@pytest.mark.parametrize("channels", [1.0, 2.0])
def test_interpolation_of_channels_is_proved_by_onnx_s_evaluator(channels: float, target: str) -> None:
    constants = {"s": np.float32([1, channels, 2, 2]), "roi": np.float32([])}
    node = helper.make_node("Resize", ["x", "roi", "s"], ["y"], "r", mode="linear")
    model = _model([node], [1, 3, 4, 4], {"y": [1, int(3 * channels), 8, 8]}, constants)
    program = _compiled(model, target)
    said = [each["reason"] for each in program.report.get("warnings", ()) if each["code"] == "W303"]
    assert any("onnx's reference evaluator" in each for each in said) == (channels != 1)


@pytest.mark.parametrize("ir_version", [8, 99])
def test_where_onnx_s_evaluator_cannot_run_it_either_npuc_s_interpreter_does(ir_version: int) -> None:
    """onnxruntime opens the first and cannot run it; the second it does not open."""
    model = _transposed(1, 1)
    model.ir_version = ir_version
    (warning,) = _compiled(model, "bm1684").report["warnings"]
    assert "npuc's interpreter is the reference" in warning["reason"]


def test_evaluators_that_contradict_one_another_are_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    run = standby.Evaluated.run

    def other(self: Any, names: Any, feeds: Any) -> Any:
        return [each * 1.1 for each in run(self, names, feeds)]

    monkeypatch.setattr(standby.Evaluated, "run", other)
    model = _transposed(1, 0)
    model.ir_version = 99
    with pytest.raises(ModelError, match="read the model differently") as caught:
        _compiled(model, "easynpu")
    assert caught.value.problems[0].code == "E105"


def _normalised(equal: bool, outputs: int, opset: int = 15) -> onnx.ModelProto:
    """A batch normalisation in training mode; equal: its bias is its mean, which onnxruntime may keep as one."""
    bias = _random(4, seed=1)
    names = ["n", "mo", "vo", "sm", "sv"][:outputs]
    mode = {"training_mode": 1} if opset >= 14 else {}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "c", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], names, "bn", **mode),
        helper.make_node("Relu", ["n"], ["y"], "r"),
    ]
    statistics = {"m": bias if equal else _random(4, seed=2), "v": np.abs(_random(4, seed=3)) + 0.5}
    constants = {"w": _random(4, 3, 3, 3), "s": _random(4) + 1, "b": bias, **statistics}
    return _model(nodes, [1, 3, 6, 6], {"y": [1, 4, 6, 6]}, constants, opset)


@pytest.mark.parametrize("target", ["easynpu", "bm1684"])
@pytest.mark.parametrize(
    ("equal", "outputs", "opset", "trained"),
    [(True, 3, 15, True), (False, 3, 15, True), (True, 5, 9, True), (True, 1, 9, False)],
)
def test_training_mode_normalises_by_the_sample_in_every_run(
    equal: bool, outputs: int, opset: int, trained: bool, target: str
) -> None:
    """By onnxruntime's optimisations its statistics of one run would be the bias of the next."""
    model, x = _normalised(equal, outputs, opset), _random(3, 1, 3, 6, 6, seed=9) * 3
    program = _compiled(model, target, calibration={"x": x})
    found, again = (program.run({"x": x})["y"] for _ in range(2))
    assert np.array_equal(found, again)
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    rows, s, b, m, v = (constants[name] for name in "wsbmv")
    padded = np.pad(x[:, 0], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    c = np.einsum("nchwij,ocij->nohw", windows, rows)
    mean, variance = (c.mean((2, 3)), c.var((2, 3))) if trained else (m[None], v[None])
    normal = (c - mean[:, :, None, None]) / np.sqrt(variance[:, :, None, None] + 1e-5)
    wanted = np.maximum(normal * s[:, None, None] + b[:, None, None], 0)
    assert np.abs(found.reshape(wanted.shape) - wanted).max() <= 0.06 * np.abs(wanted).max()


@pytest.mark.parametrize(("op", "random"), [("RandomNormalLike", True), ("Neg", False)])
def test_random_values_are_refused_by_name(op: str, random: bool) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "c"),
        helper.make_node(op, ["c"], ["r"], "r"),
        helper.make_node("Add", ["c", "r"], ["y"], "a"),
        helper.make_node("Relu", ["c"], ["z"], "z"),
    ]
    shape = [1, 4, 4, 4]
    model = _model(nodes, [1, 3, 4, 4], {"y": shape, "z": shape}, {"w": _random(4, 3, 1, 1)})
    if not random:
        assert _compiled(model, "bm1684").report["proof"]["model"]
        return
    with pytest.raises(NpucError, match="other values in every run") as caught:
        _compiled(model, "bm1684")
    assert caught.value.problems[0].tensor == "y"


def test_constants_that_are_equal_stay_apart_where_one_is_written() -> None:
    """The sessions of npuc alone: three runs give the same bits."""
    opened, x = session(_normalised(True, 3)), _random(1, 3, 6, 6, seed=4)
    first, *others = (opened.run(["y"], {"x": x})[0] for _ in range(3))
    assert all(np.array_equal(first, each) for each in others)
