"""Kernel rows that the host lays out as channels: the same results, in fewer words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from npuc.ir import Attr, Graph
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.target import Options, Request, target
from npuc.targets.easynpu.layers.rewrites import with_rows_folded
from npuc.targets.easynpu.machine.parameters import Machine
from tests.compiled import verified
from tests.easynpu_rewrites.nets import Net
from tests.passes.networks import network, node

RANDOM = np.random.default_rng(4)
WEIGHTS = RANDOM.integers(-127, 128, 8 * 27).tolist()


def strided(kernel: tuple[int, int], extents: tuple[int, int], channels: int = 3, **attrs: Attr) -> Graph:
    """An integer graph of one convolution of an input, with -128 around it."""
    constants = {
        "w": RANDOM.integers(-127, 128, (5, channels, *kernel)).astype(np.int8),
        "b": RANDOM.integers(-900, 900, 5).astype(np.int32),
        "s": np.full(5, 9, np.int8),
    }
    x = network((1, channels, *extents), "y", node("Relu", "x", "y")).tensors["x"]
    conv = node("IntConv", "x w b s", "y", padding=-128, **attrs)
    return build("test", [conv], {"x": type(x)(x.shape, "int8")}, ["y"], constants)


@pytest.mark.parametrize(("kernel", "extents", "attrs", "folds"), [
    ((3, 3), (12, 10), {"strides": (2, 2), "pads": (0, 0, 1, 1)}, True),
    ((3, 3), (11, 10), {"strides": (2, 1), "pads": (1, 1, 1, 1)}, True),
    ((5, 2), (17, 9), {"strides": (3, 2), "pads": (4, 2, 3, 0)}, True),
    ((3, 3), (16, 12), {"strides": (2, 2), "pads": (2, 2, 2, 2), "dilations": (2, 2)}, True),
    ((2, 3), (12, 10), {"strides": (2, 2)}, True),
    ((3, 3), (3, 10), {"strides": (2, 2), "pads": (2, 0, 0, 0)}, True),
    ((3, 3), (12, 10), {"strides": (1, 2), "pads": (1, 1, 1, 1)}, False),
    ((6, 3), (12, 10), {"strides": (2, 2), "pads": (3, 0, 3, 0)}, False),
    ((1, 3), (12, 10), {"strides": (2, 2)}, False),
    ((3, 3), (1, 10), {"strides": (2, 2), "pads": (2, 0, 0, 0)}, False),
    ((3, 3), (2, 10), {"strides": (2, 2), "pads": (1, 0, 0, 0)}, False),
    ((3, 3), (2, 10), {"strides": (2, 2), "pads": (0, 0, 1, 0)}, False),
])  # fmt: skip
def test_the_host_lays_out_rows_where_that_takes_fewer_words(
    kernel: tuple[int, int], extents: tuple[int, int], attrs: dict[str, Attr], folds: bool
) -> None:
    graph = strided(kernel, extents, **attrs)
    found, made = with_rows_folded(graph, Machine())
    assert bool(made) is folds
    x = {"x": RANDOM.integers(-128, 128, graph.shape("x")).astype(np.int8)}
    np.testing.assert_array_equal(run(found, x)["y"], run(graph, x)["y"])


def test_a_map_with_surroundings_of_its_own_is_not_laid_out() -> None:
    graph = strided((3, 3), (12, 10), strides=(2, 2), pads=(0, 0, 1, 1))
    conv = replace(graph.nodes[0], inputs=(*graph.nodes[0].inputs, "p"))
    constants = {**graph.constants, "p": np.array([3, -5, 7], np.int8)}
    graph = build("test", [conv], {"x": graph.tensors["x"]}, ["y"], constants)
    assert with_rows_folded(graph, Machine())[0] is graph


@pytest.mark.parametrize(
    ("before", "machine", "folds"),
    [
        ("Transpose", Machine(), False),  # 36 words more than the array loads: 576 cycles for 270
        ("Transpose", Machine(host_bytes_per_cycle=2), False),
        ("Transpose", Machine(host_bytes_per_cycle=3), True),
        ("Transpose", Machine(fmap_words=119, skip_words=119), True),  # where no DTCM holds 120 pixels
        ("IntRelu", Machine(), False),
    ],
)
def test_the_host_lays_out_integers_that_it_moves_where_that_is_faster(
    before: str, machine: Machine, folds: bool
) -> None:
    """The array loads 30 words, and moves at most 120 pieces to 120 pixels; the host makes 66 words."""
    graph = strided((3, 3), (12, 10), strides=(2, 2), pads=(0, 0, 1, 1))
    attrs: dict[str, Attr] = {"perm": (0, 3, 1, 2)} if before == "Transpose" else {}
    x = replace(graph.tensors["x"], shape=(1, 12, 10, 3)) if attrs else graph.tensors["x"]
    nodes = [node(before, "x", "moved", **attrs), replace(graph.nodes[0], inputs=("moved", "w", "b", "s"))]
    graph = build("test", nodes, {"x": x}, ["y"], graph.constants)
    found, made = with_rows_folded(graph, machine)
    assert ("moved" in made) is bool(made) is folds
    data = {"x": RANDOM.integers(-128, 128, graph.shape("x")).astype(np.int8)}
    np.testing.assert_array_equal(run(found, data)["y"], run(graph, data)["y"])


@pytest.mark.parametrize(("machine", "size"), [(None, 48), ("large", 24)])
def test_a_quantised_model_with_integers_channels_last_loads_half_the_words(
    machine: str | None, size: int, tmp_path: Path
) -> None:
    half = size // 2
    text = f"""<ir_version: 8, opset_import: ["" : 13]>
        g (int8[1, {size}, {size}, 3] x) => (int8[1, 8, {half}, {half}] y)
        <int8 z = {{-128}}, float s = {{0.5}}, int8 n = {{0}}, float t = {{0.01}},
        int8[8, 3, 3, 3] w = {{{", ".join(map(str, WEIGHTS))}}}> {{
        m = Transpose <perm = [0, 3, 1, 2]> (x)  f = DequantizeLinear (m, s, z)  v = DequantizeLinear (w, t, n)
        a = Conv <strides = [2, 2], pads = [0, 0, 1, 1]> (f, v)  y = QuantizeLinear (a, s, z) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    found, report = verified(Request(tmp_path / "m.onnx", target("easynpu"), Options(machine=machine)), tmp_path)
    assert report["bit_exact"] is True
    loaded = found.manifest["report"]["host_traffic"]["map_bytes"] // 16 - half * half
    assert half * (size + 1) <= loaded <= half * (size + 1) + 49  # a column is loaded twice where tiles meet


@pytest.mark.parametrize("isa", ["extended", "documented"])
def test_a_program_loads_half_the_words_without_a_computing_step_of_the_host(isa: str, tmp_path: Path) -> None:
    """24 x 24 pixels of 3 channels: 12 rows of 25 words, and 144 results."""
    text = "a = Conv <strides = [2, 2], pads = [1, 1, 0, 0]> (x, w) y = Relu (a)"
    onnx.save(Net((1, 3, 24, 24), (1, 8, 12, 12), text, {"w": (8, 3, 3, 3)}).model(), tmp_path / "m.onnx")
    asked = Options(level="0", strict=True, flags={"isa": isa})
    found, report = verified(Request(tmp_path / "m.onnx", target("easynpu"), asked), tmp_path)
    assert report["bit_exact"] is True
    assert found.manifest["report"]["host_steps"] == []
    assert found.manifest["report"]["host_traffic"]["map_bytes"] == 16 * (12 * 25 + 144)
    assert found.manifest["report"]["host_traffic"]["least_bytes"] <= 3 * 24 * 24 + 8 * 144
