"""Batches of images: networks of one image, and fully connected layers on all images at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.errors import ArtefactError, NpucError
from npuc.program import Program
from npuc.target import target
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla.formats.weights import WeightForm
from npuc.targets.nvdla.loadable.rules import broken_rules
from npuc.targets.nvdla.machine import parameters as machines
from npuc.targets.nvdla.machine.parameters import FULL, SMALL
from npuc.targets.nvdla.machine.registers import Write
from npuc.targets.nvdla.operations.operation import Surface
from npuc.targets.nvdla.operations.tiling import Geometry, RowTile
from npuc.targets.nvdla.program.artefact import Contents
from npuc.targets.nvdla.selection.context import covers, in_batches
from tests.given import GIVEN
from tests.nvdla.networks import compiled, expect_exact, verified
from tests.onnx_models import network, node, weights

TARGETS = ("nvdla-small", "nvdla-large", "nvdla-full")


def lenet(images: int, channels: int = 8, extent: int = 12) -> onnx.ModelProto:
    """Two convolutions with pooling, two fully connected layers: digits of 12x12."""
    last = extent // 4
    nodes = [
        node("Conv", "x w1", "c1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p1 w2", "c2", pads=[1, 1, 1, 1]),
        node("Relu", "c2", "r2"),
        node("MaxPool", "r2", "p2", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p2", "f"),
        node("Gemm", "f w3 b3", "g", transB=1),
        node("Relu", "g", "h"),
        node("Gemm", "h w4 b4", "y", transB=1),
    ]
    constants = {
        "w1": weights(channels, 1, 3, 3), "w2": weights(2 * channels, channels, 3, 3),
        "w3": weights(40, 2 * channels * last * last), "b3": weights(40, 1)[:, 0],
        "w4": weights(10, 40), "b4": weights(10, 1)[:, 0],
    }  # fmt: skip
    return network(nodes, (images, 1, extent, extent), constants)


def connected(images: int, shape: tuple[int, int, int], results: int = 20) -> onnx.ModelProto:
    """A convolution and a fully connected layer on maps (C, H, W)."""
    C, H, W = shape
    nodes = [
        node("Conv", "x w", "c"), node("Relu", "c", "r"), node("Flatten", "r", "f"),
        node("Gemm", "f v b", "y", transB=1),
    ]  # fmt: skip
    constants = {"w": weights(C, C, 1, 1), "v": weights(results, C * H * W), "b": weights(results, 1)[:, 0]}
    return network(nodes, (images, *shape), constants)


def layers(program: Program) -> list[dict[str, Any]]:
    """The layers of the report."""
    return program.manifest["report"]["layers"]


def written(program: Program, name: str) -> list[int]:
    """What the program writes to a register, in order."""
    contents = Contents.of(program.manifest)
    known = contents.registers
    return [
        each.value
        for each in contents.commands(program)
        if isinstance(each, Write) and each.address == known[name].address
    ]


@pytest.mark.parametrize(("images", "name"), [
    (3, "nvdla-small"), (2, "nvdla-large"), (2, "nvdla-full"), (8, "nvdla-full"),
])  # fmt: skip
def test_a_small_network_on_a_batch_is_bit_exact(tmp_path: Path, images: int, name: str) -> None:
    expect_exact(verified(lenet(images), tmp_path, name, samples=1))


@pytest.mark.parametrize("precision", ["int16", "fp16"])
def test_other_precisions_take_batches_too(tmp_path: Path, precision: str) -> None:
    report = verified(lenet(3), tmp_path, "nvdla-full", samples=1, precision=precision)
    assert report["bit_exact"] is (None if precision == "fp16" else True)
    assert report["outputs"][0]["sqnr_db"] > 60
    assert [each["batches"] for each in report["compiled"]["layers"][-2:]] == [3, 3]


def test_fully_connected_layers_fetch_their_weights_once(tmp_path: Path) -> None:
    one, eight = (layers(compiled(lenet(images), tmp_path)[2])[-2:] for images in (1, 8))
    inputs, results, stored = (144, 40), (40, 16), (40 * 144, 10 * 40)
    for number, once in enumerate((one, eight)):
        moved = [
            each + (1, 8)[number] * (given + result)
            for given, result, each in zip(inputs, results, stored, strict=True)
        ]
        assert [layer["bytes"] for layer in once] == moved


def test_multi_batch_mode_is_for_configurations_that_have_it(tmp_path: Path) -> None:
    full, small = (compiled(lenet(5), tmp_path, name)[2] for name in ("nvdla-full", "nvdla-small"))
    for program, batches in ((full, 5), (small, 1)):
        assert [each["batches"] for each in layers(program)[-2:]] == [batches, batches]
        for name in ("CDMA", "CSC", "CACC"):
            assert written(program, f"{name}.D_BATCH_NUMBER")[-2:] == [batches - 1] * 2
        assert [value >> 8 & 31 for value in written(program, "SDP.D_FEATURE_MODE_CFG")[-2:]] == [batches - 1] * 2
    # maps of 3x3 pixels of 32 bytes, then single pixels: one image under another
    assert [each for each in written(full, "CDMA.D_BATCH_STRIDE") if each] == [3 * 3 * 32, 32]
    assert written(full, "SDP.D_DST_BATCH_STRIDE") == [32, 32]


def test_the_mode_can_be_given_to_the_map_of_registers_of_nv_small(tmp_path: Path) -> None:
    machine = tmp_path / "batches.toml"
    machine.write_text("max_batches = 32\n")
    report = verified(lenet(4), tmp_path, "nvdla-small", samples=1, machine=str(machine))
    expect_exact(report)
    assert [each["batches"] for each in report["compiled"]["layers"][-2:]] == [4, 4]


@pytest.mark.parametrize(("machine", "stride", "address", "expected"), [
    (FULL, 8, 0, [(0, 40, 1)]),  # more than 32: one map
    (FULL, 9, 0, [(0, 32, 32), (32, 8, 8)]),
    (FULL, 9, 32, [(0, 1, 1), (1, 32, 32), (33, 7, 7)]),  # SDP writes batches from even atoms on
    (replace(FULL, max_batches=40), 8, 0, [(0, 40, 40)]),
    (replace(FULL, max_batches=40), 8, 32, [(0, 40, 1)]),
    (SMALL, 8, 0, [(0, 40, 1)]),
])  # fmt: skip
def test_a_tile_is_one_batch_or_several_or_a_map(
    machine: machines.Machine, stride: int, address: int, expected: list[tuple[int, int, int]]
) -> None:
    shape = Geometry(4, 40 * stride, 8, 40, 1, 16, stride, 4, stride, 1, 0)
    result = Surface(address, 1, 40, 16, 32, 40 * 32)
    found = list(in_batches(machine, shape, RowTile(0, 40, 0, 40 * stride), result))
    assert [(tile.row, tile.rows, batches) for tile, batches in found] == expected
    assert all((tile.line, tile.lines) == (tile.row * stride, tile.rows * stride) for tile, _ in found)


@pytest.mark.parametrize("changed", [
    {"out_width": 2}, {"stride_y": 4}, {"stride_y": 2, "out_height": 4}, {"top": 1}, {"dilation_y": 2},
    {"height": 10}, {"form": WeightForm("winograd")},
])  # fmt: skip
def test_windows_that_do_not_cover_one_image_each_are_no_batches(changed: dict[str, Any]) -> None:
    shape = Geometry(4, 9, 8, 3, 1, 16, 3, 4, 3, 1, 0)
    assert covers(shape) and not covers(replace(shape, **changed))


@pytest.mark.parametrize(("images", "name"), [(33, "nvdla-full"), (3, "nvdla-full"), (3, "nvdla-small")])
def test_maps_of_more_lines_than_a_stride_has_need_the_mode(tmp_path: Path, images: int, name: str) -> None:
    report = verified(connected(images, (8, 10, 2)), tmp_path, name, samples=1)
    expect_exact(report)
    last = [each for each in report["compiled"]["layers"] if each["name"].startswith("y")]
    assert len(last) == (1 if name == "nvdla-full" else images)
    assert sum(each["jobs"] for each in last) == {33: 2, 3: 1}[images] * len(last)
    assert last[0]["batches"] == ({33: 17, 3: 3}[images] if name == "nvdla-full" else 1)


@pytest.mark.parametrize("channels", [3, 8])
def test_windows_one_under_another_may_be_higher_than_a_stride(tmp_path: Path, channels: int) -> None:
    model = network(
        [node("Conv", "x w", "y", strides=[9, 1])], (1, channels, 27, 4), {"w": weights(6, channels, 9, 4)}
    )
    report = verified(model, tmp_path, "nvdla-full", samples=1)
    expect_exact(report)
    assert [each["batches"] for each in report["compiled"]["layers"]] == [3]
    across = network(
        [node("Conv", "x w", "y", strides=[9, 9])], (1, channels, 27, 4), {"w": weights(6, channels, 9, 4)}
    )
    if channels == 8:  # as many as fold into rows
        expect_exact(verified(across, tmp_path, "nvdla-full", samples=1))
        return
    with pytest.raises(NpucError, match="E202"):
        compiled(across, tmp_path, "nvdla-full")


def test_batches_that_do_not_fit_the_convolution_buffer_are_several(tmp_path: Path) -> None:
    # an image is 16 lines of 16 * 16 atoms, 4 an entry: 1024 entries, 4 of 16 banks; two kernels of 128 KiB have 8
    _, _, program = compiled(connected(6, (512, 16, 16), results=2), tmp_path, "nvdla-full")
    (last,) = (each for each in layers(program) if each["name"].startswith("y"))
    assert (last["batches"], last["jobs"]) == (2, 3)


def test_maps_that_are_added_behind_the_layer_have_a_batch_stride(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "c"), node("Flatten", "c", "f"), node("Gemm", "f v", "g", transB=1),
        node("Relu", "g", "h"), node("Gemm", "h u", "k", transB=1), node("Add", "k h", "y"),
    ]  # fmt: skip
    constants = {"w": weights(8, 8, 1, 1), "v": weights(40, 72), "u": weights(40, 40)}
    report = verified(network(nodes, (4, 8, 3, 3), constants), tmp_path, "nvdla-full", samples=1)
    expect_exact(report)
    assert report["compiled"]["layers"][-1]["batches"] == 4
    _, _, program = compiled(network(nodes, (4, 8, 3, 3), constants), tmp_path, "nvdla-full")
    assert set(written(program, "SDP_RDMA.D_BN_BATCH_STRIDE")) == {
        32
    }  # of each atom of kernels: one pixel is packed
    with pytest.raises(ArtefactError, match="E506"):  # descriptors have no such stride
        target("nvdla-full").export(program, "loadable")


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-full"])
def test_an_autoencoder_of_a_given_model_on_a_batch_is_bit_exact(tmp_path: Path, name: str) -> None:
    path = GIVEN / "models" / "tiny_ad_ae_fp32.onnx"
    if not path.is_file():
        pytest.skip("no models beside the project")
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    del model.graph.value_info[:]
    expect_exact(verified(model, tmp_path, name, samples=1))


@pytest.mark.parametrize("name", TARGETS)
def test_loadables_of_batches_compute_the_same(tmp_path: Path, name: str) -> None:
    _, _, program = compiled(lenet(3), tmp_path, name)
    files = target(name).export(program, "loadable")  # compares what the firmware makes of it with the program
    loadable = loadables.read(files["network.nvdla"])
    assert list(broken_rules(loadable, machines.load(name))) == []
    assert [each.name for each in loadable.tensor_desc_list][:3] == [f"x/sample{each}" for each in range(3)]


def test_a_test_program_of_a_batch_has_all_results(tmp_path: Path) -> None:
    _, _, program = compiled(lenet(3), tmp_path, "nvdla-full")
    found = target("nvdla-full").export(program, "nvdla-trace")
    assert "NVDLA_CDMA.D_BATCH_STRIDE" in next(
        data.decode() for name, data in found.items() if name.endswith(".cfg")
    )


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-large"])
@pytest.mark.parametrize("case", ["Neg", "BatchNormalization"])
def test_a_batch_whose_channels_are_treated_apart_is_one_image(case: str, name: str, tmp_path: Path) -> None:
    """NVDLA has one image; the samples of Neg and of batch normalisation lie beside each other as channels."""
    values = {key: np.linspace(low, 2, 3, dtype=np.float32) for key, low in
              {"s": 0.5, "b": -1.0, "m": 0.25, "v": 0.75}.items()}  # fmt: skip
    shape = (3, 4, 5) if case == "Neg" else (2, 3, 4, 5)
    nodes = [node(case, "x" if case == "Neg" else "x s b m v", "y")]
    report = verified(network(nodes, shape, {} if case == "Neg" else values), tmp_path, name)
    expect_exact(report, 30.0)
    assert not [step for step in report["compiled"]["host_steps"] if step["op"] not in MOVED]


MOVED = ("QuantizeLinear", "DequantizeLinear", "Reshape")
"""What the host does with inputs and outputs."""
