"""Transposed convolutions, DepthToSpace, SpaceToDepth and repeated pixels: the host does nothing of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from npuc.ir import Array
from npuc.program import load
from npuc.target import target
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla.firmware import descriptors
from npuc.targets.nvdla.loadable import engine_tasks, read_task
from npuc.targets.nvdla.selection import planning
from tests.nvdla.networks import compiled, expect_exact, verified
from tests.onnx_models import network, node, weights

CONFIGURATIONS = ("nvdla-small", "nvdla-large", "nvdla-full")
ALL = pytest.mark.parametrize("name", CONFIGURATIONS)
PRECISIONS = pytest.mark.parametrize(("name", "precision"), [("nvdla-small", "int8"), ("nvdla-full", "int16")])
Constants = dict[str, Array]
INTERLEAVING = {"elementwise": 2, "contraction": 1}
"""What interleaves the columns of two maps, and how many operations that takes."""


def expect_no_host(
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    constants: Constants,
    folder: Path,
    name: str,
    precision: str = "int8",
) -> dict[str, Any]:
    """The compile report of a network that is exact and that NVDLA computes alone."""
    report = verified(network(nodes, shape, constants), folder, name, precision=precision)
    expect_exact(report, 30.0)
    assert report["compiled"]["host_steps"] == []
    return report["compiled"]


@pytest.mark.parametrize(("kernel", "channels", "attrs"), [
    ((2, 2), 4, {"strides": [2, 2]}), ((3, 3), 9, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((3, 3), 40, {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((4, 4), 4, {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 4}), ((1, 1), 4, {"strides": [2, 2]}),
    ((5, 4), 4, {"strides": [3, 1], "group": 2}), ((3, 6), 4, {"strides": [2, 3], "pads": [1, 2, 0, 1]}),
    ((3, 2), 4, {"strides": [2, 4], "dilations": [3, 6], "output_padding": [1, 3]}), ((3, 3), 4, {}),
])  # fmt: skip
@PRECISIONS
def test_a_transposed_convolution_leaves_nothing_to_the_host(
    kernel: tuple[int, int], channels: int, attrs: dict[str, Any], name: str, precision: str, tmp_path: Path
) -> None:
    w = weights(8, channels // attrs.get("group", 1), *kernel)
    expect_no_host([node("ConvTranspose", "x w", "y", **attrs)], (1, 8, 5, 6), {"w": w}, tmp_path, name, precision)


@PRECISIONS
def test_a_transposed_convolution_of_a_line_computes_no_other_lines(
    name: str, precision: str, tmp_path: Path
) -> None:
    made = expect_no_host(
        [node("ConvTranspose", "x w", "y", strides=[2])],
        (1, 8, 9), {"w": weights(8, 4, 4)}, tmp_path, name, precision,
    )  # fmt: skip
    assert [each["op"] for each in made["layers"][:2]] == ["convolution", "convolution"]
    assert len(made["layers"]) == 3


@ALL
def test_strides_along_rows_alone_take_no_operation(name: str, tmp_path: Path) -> None:
    nodes = [node("ConvTranspose", "x w", "y", strides=[2, 1])]
    made = expect_no_host(nodes, (1, 8, 5, 6), {"w": weights(8, 4, 2, 1)}, tmp_path, name)
    assert [each["op"] for each in made["layers"]] == ["convolution", "convolution"]


@ALL
def test_bias_relu_and_an_addition_behind_a_transposed_convolution_stay_exact(name: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("MaxPool", "a", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", "p v b", "t", strides=[2, 2]),
        node("Relu", "t", "r"),
        node("Add", "r a", "y"),
    ]
    constants = {"w": weights(12, 3, 3, 3), "v": weights(12, 12, 2, 2), "b": weights(12)}
    made = expect_no_host(nodes, (1, 3, 8, 6), constants, tmp_path, name)
    assert sum(each["op"] == "convolution" for each in made["layers"]) == 5


@pytest.mark.parametrize("channels", [8, 12])
@PRECISIONS
def test_the_enlarged_map_lies_in_the_concatenation_that_reads_it(
    channels: int, name: str, precision: str, tmp_path: Path
) -> None:
    """The upper half of a U-Net: the columns are interleaved where the next convolution reads them."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Conv", "a d", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("ConvTranspose", "c v", "t", strides=[2, 2]),
        node("Concat", "a t", "j", axis=1),
        node("Conv", "j u", "y", pads=[1, 1, 1, 1]),
    ]
    constants = {
        "w": weights(channels, 3, 3, 3), "d": weights(16, channels, 3, 3), "v": weights(16, channels, 2, 2),
        "u": weights(5, 2 * channels, 3, 3),
    }  # fmt: skip
    made = expect_no_host(nodes, (1, 3, 8, 8), constants, tmp_path, name, precision)
    (interleaving,) = (each for each in made["layers"] if each["op"] in INTERLEAVING)
    assert interleaving["jobs"] == INTERLEAVING[interleaving["op"]]


@pytest.mark.parametrize(("mode", "channels"), [("DCR", 12), ("CRD", 12), ("DCR", 64), ("CRD", 32)])
@PRECISIONS
def test_depth_to_space_behind_a_convolution(
    mode: str, channels: int, name: str, precision: str, tmp_path: Path
) -> None:
    nodes = [node("Conv", "x w", "a"), node("DepthToSpace", "a", "y", blocksize=2, mode=mode)]
    w = {"w": weights(channels, 3, 1, 1)}
    expect_no_host(nodes, (1, 3, 5, 6), w, tmp_path, name, precision)


@pytest.mark.parametrize(("mode", "channels"), [("DCR", 64), ("CRD", 12)])
@ALL
def test_depth_to_space_of_a_map_that_others_read(mode: str, channels: int, name: str, tmp_path: Path) -> None:
    nodes = [
        node("MaxPool", "x", "a", kernel_shape=[2, 2]),
        node("DepthToSpace", "a", "b", blocksize=2, mode=mode),
        node("Conv", "b w", "c"),
        node("GlobalAveragePool", "a", "g"),
        node("Conv", "g v", "d"),
        node("Add", "c d", "y"),
    ]
    constants = {"w": weights(4, channels // 4, 1, 1), "v": weights(4, channels, 1, 1)}
    report = verified(network(nodes, (1, channels, 6, 5), constants), tmp_path, name)
    expect_exact(report)
    assert report["compiled"]["host_steps"] == []


@PRECISIONS
@pytest.mark.parametrize("channels", [3, 16])
def test_space_to_depth_is_part_of_the_convolution_that_reads_it(
    channels: int, name: str, precision: str, tmp_path: Path
) -> None:
    nodes = [node("SpaceToDepth", "x", "a", blocksize=2), node("Conv", "a w", "y", pads=[1, 1, 1, 1])]
    w = {"w": weights(6, 4 * channels, 3, 3)}
    made = expect_no_host(nodes, (1, channels, 8, 6), w, tmp_path, name, precision)
    assert len(made["layers"]) == 1


@ALL
def test_space_to_depth_before_an_output(name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("SpaceToDepth", "a", "y", blocksize=2)]
    expect_no_host(nodes, (1, 3, 6, 8), {"w": weights(12, 3, 1, 1)}, tmp_path, name)


def resized(x: str, y: str, scales: str, **attrs: Any) -> onnx.NodeProto:
    """Resize by factors."""
    return helper.make_node("Resize", [x, "", scales], [y], name=y, mode="nearest", **attrs)


@pytest.mark.parametrize("factors", [(2, 2), (3, 1), (1, 2), (2, 5)])
@PRECISIONS
def test_pixels_are_repeated_by_copies(
    factors: tuple[int, int], name: str, precision: str, tmp_path: Path
) -> None:
    floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nodes = [node("Conv", "x w", "a"), resized("a", "b", "s", **floor), node("Conv", "b v", "y")]
    constants = {"w": weights(9, 3, 1, 1), "v": weights(4, 9, 3, 2), "s": np.array([1, 1, *factors], np.float32)}
    expect_no_host(nodes, (1, 3, 5, 6), constants, tmp_path, name, precision)


@ALL
def test_a_map_of_more_pixels_than_a_cube_has_lines_is_interleaved_in_parts(name: str, tmp_path: Path) -> None:
    nodes = [node("ConvTranspose", "x w", "y", strides=[1, 2])]
    report = verified(network(nodes, (1, 4, 110, 150), {"w": weights(4, 40, 1, 2)}), tmp_path, name, samples=1)
    expect_exact(report, 30.0)
    last = report["compiled"]["layers"][-1]
    if name == "nvdla-full":
        assert last["op"] == "contraction"  # which ends earlier
        return
    surfaces = 5 if name == "nvdla-small" else 2  # of which a cube has all 110 lines, or 54 lines of all of them
    assert last["jobs"] == 2 * min(surfaces, 3)


@ALL
def test_maps_side_by_side_are_interleaved_line_by_line(name: str, tmp_path: Path) -> None:
    """A line of the joined map is not twice a line of either: no step leads from one line into the next."""
    nodes = [
        node("Conv", "x w", "a"),
        node("ConvTranspose", "a v", "t", strides=[1, 2]),
        node("Concat", "a t", "j", axis=3),
        node("Conv", "j u", "y"),
    ]
    constants = {"w": weights(40, 4, 1, 1), "v": weights(40, 40, 1, 2), "u": weights(3, 40, 1, 1)}
    made = expect_no_host(nodes, (1, 4, 6, 5), constants, tmp_path, name)
    (interleaving,) = (each for each in made["layers"] if each["op"] in INTERLEAVING)
    assert interleaving["jobs"] == {"nvdla-small": 2 * 5, "nvdla-large": 2 * 2, "nvdla-full": 1}[name]


@pytest.mark.parametrize("nodes", [
    [node("ConvTranspose", "x w", "y", strides=[2, 2], pads=[1, 1, 1, 1])],
    [node("Conv", "x w", "a"), node("DepthToSpace", "a", "y", blocksize=2, mode="CRD")],
    [node("Conv", "x w", "a"), node("SpaceToDepth", "a", "y", blocksize=2)],
])  # fmt: skip
def test_fp16_leaves_nothing_to_the_host(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    report = verified(
        network(nodes, (1, 8, 6, 8), {"w": weights(8, 8, 3, 3)}), tmp_path, "nvdla-full", precision="fp16"
    )
    assert report["outputs"][0]["sqnr_db"] > 60
    assert report["compiled"]["host_steps"] == []


def _contracted(folder: Path, **options: Any) -> list[str]:
    """The layers of a transposed convolution on nv_full, which is exact."""
    nodes = [node("ConvTranspose", "x w", "y", strides=[2, 2])]
    report = verified(network(nodes, (1, 8, 3, 4), {"w": weights(8, 40, 2, 2)}), folder, "nvdla-full", **options)
    assert report["outputs"][0]["sqnr_db"] > 30
    assert report["compiled"]["host_steps"] == []
    return [each["op"] for each in report["compiled"]["layers"]]


@pytest.mark.parametrize("precision", ["int8", "int16", "fp16"])
def test_rubik_contracts_the_columns_where_that_takes_fewer_cycles(precision: str, tmp_path: Path) -> None:
    assert _contracted(tmp_path, precision=precision) == ["convolution"] * 4 + ["contraction"]
    (tmp_path / "slow.toml").write_text("rubik_bytes = 1\n")
    (tmp_path / "slow").mkdir()
    slow = _contracted(tmp_path / "slow", precision=precision, machine=str(tmp_path / "slow.toml"))
    assert slow == ["convolution"] * 4 + ["elementwise"]


def test_a_loadable_has_the_contraction(tmp_path: Path) -> None:
    """What it computes is compared with the program before it is given out."""
    assert _contracted(tmp_path)[-1] == "contraction"
    exported = target("nvdla-full").export(load(tmp_path / "network.npu"), "loadable")
    loadable = loadables.read(exported["network.nvdla"])
    task = read_task(loadable, *engine_tasks(loadable))
    assert task.operations[-1] == descriptors.Rubik(mode=0, precision=0, stride_x=2, stride_y=1)
    source, result = task.surfaces[-1].source, task.surfaces[-1].result
    assert (source.width, source.height, source.channels) == (4, 6, 128)  # two maps of 40 channels: 2 atoms each
    assert (result.width, result.height, result.channels) == (8, 6, 40)
    assert (source.line_stride, source.surface_stride) == (4 * 32, 6 * 4 * 32)
    assert (result.line_stride, result.surface_stride) == (8 * 32, 6 * 8 * 32)


def test_what_is_larger_than_a_cube_may_be_is_interleaved_by_the_host(tmp_path: Path) -> None:
    nodes = [node("ConvTranspose", "x w", "y", strides=[1, 2])]
    report = verified(network(nodes, (1, 2, 1, 4100), {"w": weights(2, 3, 1, 2)}), tmp_path, samples=1)
    expect_exact(report, 30.0)
    assert [each["op"] for each in report["compiled"]["layers"]] == ["convolution", "convolution"]
    steps = load(tmp_path / "network.npu").manifest["steps"]
    assert "Interleave" in [each["op"] for each in steps if each["kind"] == "host"]


# Plans: what layers have in common is selected once, and nothing else is shared


LAYERS = {  # name: kernel shape, attributes; in pairs that differ in one thing each
    "c0": ((16, 16, 3, 3), {"pads": [1] * 4}),
    "c1": ((16, 16, 3, 3), {"pads": [1] * 4}),
    "c2": ((16, 16, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    "c3": ((24, 16, 3, 3), {"pads": [1] * 4}),
    "c4": ((24, 24, 1, 1), {}),
    "c5": ((24, 24, 1, 1), {"strides": [2, 2]}),
    "c6": ((24, 24, 3, 3), {"pads": [1] * 4}),
    "c7": ((24, 24, 3, 3), {"pads": [1] * 4}),
    "c8": ((24, 12, 3, 3), {"pads": [1] * 4, "group": 2}),
}


def _files(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    nodes = [
        node("Conv", f"{before} {name}_w", name, **LAYERS[name][1])
        for before, name in zip(["x", *LAYERS][:-1], LAYERS, strict=True)
    ]
    nodes += [node("Add", "c7 c8", "y")]
    constants = {f"{name}_w": weights(*shape) for name, (shape, _) in LAYERS.items()}
    _, directory, _ = compiled(network(nodes, (1, 16, 24, 24), constants), folder)
    return {each.name: each.read_bytes() for each in directory.iterdir()}


def test_layers_that_are_alike_are_planned_as_if_each_were_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = _files(tmp_path / "shared")
    monkeypatch.setattr(planning, "likeness", lambda *_: (None, 0, 0))
    assert _files(tmp_path / "each") == shared
