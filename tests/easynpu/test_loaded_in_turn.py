"""Layers whose weights for 16 outputs exceed the weight DTCM: parts are loaded in turn, psums stay in the pads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import npuc
from npuc import program
from npuc.errors import DoesNotFit, NpucError
from npuc.ir import Array
from npuc.reference import session
from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.assembling import expect_legal
from npuc.targets.easynpu.layers.kernels import columns_of_channels, split_kernel
from npuc.targets.easynpu.machine.isa import BY_MNEMONIC, Layer
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.verification.metrics import Difference
from tests.compiled import compilation, verified
from tests.onnx_models import network

EASYNPU = target("easynpu")
SMALL = 'name = "small"\nweight_words = {weight}\nfmap_words = {maps}\nskip_words = {maps}\nitcm_words = {itcm}\n'


def _weights(*shape: int, seed: int = 0) -> Array:
    scale = np.prod(shape[1:]) ** -0.5
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def _model(path: Path, nodes: list[onnx.NodeProto], x: list[int], constants: dict[str, Array]) -> Path:
    onnx.save(network(nodes, x, constants), path)
    return path


def _conv(path: Path, channels: int, outputs: int, extent: int, behind: str = "", **attrs: Any) -> Path:
    kernel, stride = attrs.get("kernel", 3), attrs.get("stride", 1)
    pad = kernel // 2
    nodes = [
        helper.make_node(
            "Conv", ["x", "w", "b"], ["c"], "conv", kernel_shape=[kernel] * 2, pads=[pad] * 4, strides=[stride] * 2
        )
    ]
    last = "c"
    for number, op in enumerate(behind.split()):
        inputs = [last, "k"] if op == "Add" else [last]
        nodes.append(helper.make_node(op, inputs, [f"{op}{number}"], op))
        last = f"{op}{number}"
    if behind == "Relu Conv":
        nodes[-1].input.extend(["v"])
    nodes[-1].output[0] = "y"
    constants = {"w": _weights(outputs, channels, kernel, kernel), "b": _weights(1, outputs, seed=1)[0]}
    if behind == "Relu Conv":
        constants["v"] = _weights(outputs, outputs, 1, 1, seed=2)
    return _model(path, nodes, [1, channels, extent, extent], constants)


def _compiled(model: Path, folder: Path, **machine: int) -> tuple[program.Program, dict[str, Any]]:
    sizes = {"weight": 1536, "maps": 1280, "itcm": 256} | machine
    (folder / "small.toml").write_text(SMALL.format(**sizes), encoding="utf-8")
    loaded, report = verified(Request(model, EASYNPU, Options(machine=str(folder / "small.toml"))), folder)
    expect_legal(loaded)
    return loaded, report


def _taken(found: program.Program) -> int:
    """How many words take psums of the chain before, that is: of another load of weights."""
    return sum(each["fields"].get("take_psum", 0) for each in EASYNPU.listing(found))


@pytest.mark.parametrize(("layer", "machine"), [
    ({"channels": 40, "outputs": 20, "extent": 6}, {"weight": 100}),
    ({"channels": 40, "outputs": 20, "extent": 6}, {"weight": 100, "itcm": 7}),
    ({"channels": 33, "outputs": 3, "extent": 17}, {"weight": 60, "maps": 400}),
    ({"channels": 20, "outputs": 33, "extent": 9, "stride": 2}, {"weight": 64}),
    ({"channels": 17, "outputs": 16, "extent": 5, "kernel": 5}, {"weight": 80}),
    ({"channels": 300, "outputs": 8, "extent": 4, "kernel": 1}, {"weight": 100}),
    ({"channels": 40, "outputs": 20, "extent": 6, "behind": "Sigmoid"}, {"weight": 100}),
    ({"channels": 40, "outputs": 20, "extent": 6, "behind": "Relu Conv"}, {"weight": 120}),
    ({"channels": 171, "outputs": 16, "extent": 10}, {}),
])  # fmt: skip
def test_a_convolution_larger_than_the_weight_memory_is_exact(
    layer: dict[str, Any], machine: dict[str, int], tmp_path: Path
) -> None:
    found, report = _compiled(_conv(tmp_path / "model.onnx", **layer), tmp_path, **machine)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 25
    assert _taken(found) > 0


def test_a_layer_that_fits_takes_no_psums(tmp_path: Path) -> None:
    found, _ = _compiled(_conv(tmp_path / "model.onnx", 40, 20, 6), tmp_path)
    assert _taken(found) == 0


@pytest.mark.parametrize("length", [300, 1000])
def test_a_fully_connected_layer_of_many_inputs_is_exact(length: int, tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm", transB=1)]
    constants = {"w": _weights(70, length), "b": _weights(1, 70, seed=1)[0]}
    model = _model(tmp_path / "model.onnx", nodes, [1, length], constants)
    found, report = _compiled(model, tmp_path, weight=200)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 25
    assert _taken(found) > 0


@pytest.mark.parametrize("size", [(40, 40), (41, 67), (7, 300), (80, 80)])
def test_averages_of_any_size_are_near_the_mean(size: tuple[int, int], tmp_path: Path) -> None:
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"], "mean")]
    model = _model(tmp_path / "model.onnx", nodes, [1, 20, *size], {})
    random = np.random.default_rng(1)
    x = (random.standard_normal((8, 1, 20, *size)) + random.standard_normal((8, 1, 20, 1, 1))).astype(np.float32)
    found = npuc.compile(model, "easynpu", calibration={"x": x}).run({"x": x})["y"]
    run = session(model.read_bytes())
    difference = Difference()
    difference.add(np.stack([run.run(None, {"x": each})[0] for each in x]), found)
    assert (difference.sqnr_db or 0) > 32


def test_a_zero_point_around_a_layer_that_is_loaded_in_turn_is_exact(tmp_path: Path) -> None:
    constants = {"w": _weights(20, 40, 3, 3), "s": np.float32(0.02), "z": np.int8(-17)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
        helper.make_node("Conv", ["d", "w"], ["y"], "conv", pads=[1] * 4),
    ]
    model = _model(tmp_path / "model.onnx", nodes, [1, 40, 6, 6], constants)
    found, report = _compiled(model, tmp_path, weight=100)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 25
    assert _taken(found) > 0


@pytest.mark.parametrize("options", [{"isa": "documented"}, {}])
def test_what_cannot_be_loaded_in_turn_is_refused_by_name(options: dict[str, Any], tmp_path: Path) -> None:
    weight = 100 if options else 20
    (tmp_path / "small.toml").write_text(SMALL.format(weight=weight, maps=1280, itcm=256), encoding="utf-8")
    model = _conv(tmp_path / "model.onnx", 40, 20, 6)
    with pytest.raises(DoesNotFit) as caught:
        compilation(Request(model, EASYNPU, Options(machine=str(tmp_path / "small.toml"), **options)))
    (problem,) = caught.value.problems
    assert isinstance(caught.value, NpucError)
    assert (problem.code, problem.node) == ("E302", "conv")
    assert problem.limit == f"weight_words = {weight}"
    assert ("--isa extended" in (problem.remedy or "")) == bool(options)


@pytest.mark.parametrize("op", ["AveragePool", "Slice"])
def test_parts_of_a_map_that_no_memory_holds_are_taken_by_the_host(op: str, tmp_path: Path) -> None:
    constants = {"w": _weights(24, 24, 1, 1), "starts": np.array([1, 3]), "ends": np.array([40, 39])}
    constants["axes"] = np.array([2, 3])
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "conv")]
    if op == "AveragePool":
        nodes.append(helper.make_node(op, ["c"], ["p"], "pool", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]))
    else:
        nodes.append(helper.make_node(op, ["c", "starts", "ends", "axes"], ["p"], "slice"))
    nodes.append(helper.make_node("Relu", ["p"], ["y"], "relu"))
    model = _model(tmp_path / "model.onnx", nodes, [1, 24, 40, 40], constants)
    found, report = _compiled(model, tmp_path)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 25
    assert "Slice" in {step.get("op") for step in found.manifest["steps"]}


@pytest.mark.parametrize(("rows", "taps"), [(1, {1, 2}), (2, {0, 1, 2})])
def test_taps_that_meet_only_padding_take_no_word(rows: int, taps: set[int]) -> None:
    """The upper left pixel, and the two at the left border: of nine taps four, and six, meet the map."""
    word = Layer(
        opcode=BY_MNEMONIC["conv"].opcode,
        Hi=5, Wi=5, Ho=rows, Wo=1, Hk=3, Wk=3, Ph=1, Pw=1, Ci=64, Co=16, Zs=1,
    )  # fmt: skip
    parts = split_kernel(word, Machine(), dense=True, most=100)
    assert {(part.rows.start, part.columns.start) for part in parts} == {
        (row, at) for row in taps for at in (1, 2)
    }


@pytest.mark.parametrize(
    ("fields", "m"),
    [
        ({}, 2),
        ({"Ci": 256}, 1),
        ({"Ci": 1024}, 4),
        ({"Ci": 520}, 1),  # no whole words
        ({"Ci": 272, "Wo": 1}, 17),
        ({"Wi": 128}, 2),
        ({"Wi": 129}, 1),
        ({"Sw": 7}, 2),
        ({"Sw": 8}, 1),
        ({"Sw": 8, "Wo": 1}, 2),
        ({"Pw": 7}, 2),
        ({"Pw": 8}, 1),
        ({"Dw": 1}, 2),
        ({"Dw": 1, "Wk": 2}, 1),
        ({"Hk": 4, "Wk": 8}, 2),  # 64 entries of a pad
        ({"Hk": 3, "Wk": 11}, 1),
        ({"Hk": 2, "Dh": 15, "Wk": 1}, 2),
        ({"Hk": 2, "Dh": 15, "Wk": 2}, 1),
    ],
)
def test_channels_become_columns_as_far_as_fields_and_pads_allow(fields: dict[str, int], m: int) -> None:
    word = Layer(opcode=BY_MNEMONIC["conv"].opcode, **{"Ci": 512, "Wi": 9, "Wo": 9, "Hi": 9, "Ho": 9} | fields)
    assert columns_of_channels(word, Machine()) == m


@pytest.mark.parametrize(("fields", "columns"), [
    ({"Wk": 3, "Dw": 15}, [3]), ({"Wk": 3, "Dw": 16}, [1, 1, 1]),  # 4 bits of dilation less one
    ({"Wk": 64}, [64]), ({"Wk": 65}, [33, 32]),  # 6 bits of columns less one
])  # fmt: skip
def test_a_word_has_as_many_columns_of_a_kernel_as_its_fields_state(
    fields: dict[str, int], columns: list[int]
) -> None:
    word = Layer(opcode=BY_MNEMONIC["conv"].opcode, **{"Ci": 16, "Wi": 70, "Hi": 1, "Ho": 1, "Wo": 1} | fields)
    parts = split_kernel(word, Machine(ifmap_pad_entries=128), dense=True)
    assert [part.word.Wk for part in parts] == columns
