"""Tiles become whole maps: an operator for each layer and the same bits; not where tiles are padded inside."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc import running
from npuc.ir import Array
from npuc.models import MODELS
from npuc.program import Program, as_loaded
from npuc.samples.loading import varied
from npuc.target import Options, Request, target
from npuc.targets.easynpu.simulate import network as networks
from npuc.targets.easynpu.simulate.merging import Merging
from npuc.targets.easynpu.simulate.network import Network
from npuc.targets.easynpu.simulate.origins import Value, ValuePart
from npuc.targets.easynpu.simulate.running import QuickRunner, Runner
from tests.compiled import compilation


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """The operators of every network that is opened."""
    found: list[Counter[str]] = []
    session = networks.session

    def counted(model: onnx.ModelProto, **options: Any) -> Any:
        found.append(Counter(node.op_type for node in model.graph.node))
        return session(model, **options)

    monkeypatch.setattr(networks, "session", counted)
    return found


SMALL = "fmap_words = 300\nskip_words = 300\nweight_words = 900\n"


def test_a_program_of_many_tiles_has_one_operator_for_each_layer(
    tmp_path: Path, opened: list[Counter[str]]
) -> None:
    random = np.random.default_rng(0)
    nodes, constants, name, channels = [], [], "x", 3
    for at, (width, kernel, group, stride) in enumerate(
        ((32, 3, 1, 2), (64, 1, 1, 1), (64, 3, 64, 1), (32, 1, 1, 1), (48, 3, 1, 1))
    ):
        w = random.normal(0, 0.3, (width, channels // group, kernel, kernel)).astype(np.float32)
        constants.append(numpy_helper.from_array(w, f"w{at}"))
        pads = [kernel // 2] * 4
        nodes += [
            helper.make_node("Conv", [name, f"w{at}"], [f"c{at}"], pads=pads, strides=[stride] * 2, group=group),
            helper.make_node("Relu", [f"c{at}"], [f"r{at}"]),
        ]
        name, channels = f"r{at}", width
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 48, 48])
    y = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx"
    )
    (tmp_path / "m.toml").write_text(SMALL, encoding="utf-8")
    options = Options(machine=str(tmp_path / "m.toml"), level="0")
    program = as_loaded(compilation(Request(tmp_path / "m.onnx", target("easynpu"), options)).program)
    samples = varied(running.program_inputs(program)).inputs
    words, quick = Runner(program), QuickRunner(program)
    assert len(words.contents.instructions) > 100
    found = quick(samples)
    while not opened:  # words, until the network pays
        found = quick(samples)
    for output, values in words(samples).items():
        np.testing.assert_array_equal(found[output], values)
    (operators,) = opened
    assert operators["QLinearConv"] + operators["Conv"] == 5
    assert operators["Concat"] == 0


@pytest.mark.usefixtures("exact_integers")
def test_an_average_in_several_words_is_one_integer_convolution(
    tmp_path: Path, opened: list[Counter[str]]
) -> None:
    onnx.save(MODELS["ds_cnn"](), tmp_path / "m.onnx")
    program = as_loaded(compilation(Request(tmp_path / "m.onnx", target("easynpu"), Options(level="0"))).program)
    samples = varied(running.program_inputs(program)).inputs
    assert any("keep_psum" in str(each) for each in target("easynpu").listing(program))
    quick, found = QuickRunner(program), dict[str, Array]()
    while not opened:
        found = quick(samples)
    for output, values in Runner(program)(samples).items():
        np.testing.assert_array_equal(found[output], values)
    assert opened[0]["QLinearConv"] == 11  # the first, four depthwise, four pointwise, the average, the product
    assert opened[0]["Conv"] == 0


def _in_few_words(path: Path, nodes: list[onnx.NodeProto], w: Array, shape: tuple[int, ...]) -> Program:
    """A program for a machine with small memories, of nodes that read x and w and end in y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path / "m.onnx")
    (path / "m.toml").write_text("fmap_words = 300\nskip_words = 300\nweight_words = 300\n", encoding="utf-8")
    options = Options(machine=str(path / "m.toml"), level="0")
    return as_loaded(compilation(Request(path / "m.onnx", target("easynpu"), options)).program)


def _as_by_words(program: Program) -> None:
    """Runs a program as a network, and expects the bits of its words."""
    samples = varied(running.program_inputs(program)).inputs
    quick, words = QuickRunner(program), Runner(program)
    found = quick(samples)
    for output, values in words(samples).items():
        np.testing.assert_array_equal(found[output], values)


@pytest.mark.usefixtures("exact_integers")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 1, 2])
def test_words_with_a_tap_each_are_one_integer_convolution_on_whole_maps(
    pad: int, stride: int, tmp_path: Path, opened: list[Counter[str]]
) -> None:
    w = np.random.default_rng(0).normal(0.02, 0.1, (16, 256, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[pad] * 4, strides=[stride] * 2),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    program = _in_few_words(tmp_path, nodes, w, (1, 256, 7, 6))
    taps = [each for each in target("easynpu").listing(program) if "keep_psum" in str(each)]
    assert len(taps) > 9  # nine in each of several tiles; fewer where taps see the padding only
    _as_by_words(program)
    assert 1 <= opened[0]["QLinearConv"] <= 3  # one each for the first and last tiles without words for such taps
    assert opened[0]["ConvInteger"] + opened[0]["Conv"] == 0


def test_tiles_of_a_padded_pool_are_one_operator(tmp_path: Path, opened: list[Counter[str]]) -> None:
    w = np.random.default_rng(0).normal(0.02, 0.3, (32, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3], pads=[2, 1, 0, 1]),
    ]
    program = _in_few_words(tmp_path, nodes, w, (1, 3, 30, 30))
    assert str(target("easynpu").listing(program)).count("maxpool") > 4
    _as_by_words(program)
    assert opened[0]["MaxPool"] == 2


def _cut(network: Network, value: Value, start: tuple[int, int, int], end: tuple[int, int, int]) -> Value:
    extents = (end[0] - start[0], end[1] - start[1], end[2] - start[2])
    return network.cut(ValuePart(value, start, extents))


def _bounds(random: np.random.Generator, size: int, most: int) -> list[tuple[int, int]]:
    inner = random.choice(np.arange(1, max(size, 2)), min(int(random.integers(0, most)), size - 1), replace=False)
    return [*pairwise([0, *sorted(inner.tolist()), size])]


def _groups(random: np.random.Generator, channels: int) -> list[tuple[int, int]]:
    """Channels in parts of 16, 32 or 48, as the machine has them."""
    return [(16 * first, 16 * last) for first, last in _bounds(random, channels // 16, 3)]


class _Layer:
    """A convolution of random kind, computed tile by tile; flawed: some tile is padded inside the map."""

    def __init__(self, random: np.random.Generator, x: Value) -> None:
        self.random, self.x = random, x
        self.depthwise, self.relu = bool(random.integers(2)), bool(random.integers(2))
        self.kernel, self.stride = (int(random.choice(each)) for each in ((1, 3, 5), (1, 2)))
        self.pad = int(random.integers(0, self.kernel))
        self.channels = x.channels if self.depthwise else int(random.choice([16, 32, 48]))
        depth = 1 if self.depthwise else x.channels
        self.w = random.integers(-128, 128, (self.channels, depth, self.kernel, self.kernel)).astype(np.int8)
        self.bias = random.integers(-1000, 1000, self.channels).astype(np.int32)

    def extents(self) -> list[int]:
        return [(size + 2 * self.pad - self.kernel) // self.stride + 1 for size in (self.x.height, self.x.width)]

    def tile(self, network: Network, bounds: tuple[tuple[int, int], ...], *, flawed: bool) -> Value:
        (first, last), *places = bounds
        before, after, low, high = [0, 0], [0, 0], [0, 0], [0, 0]
        for axis, ((begin, end), size) in enumerate(zip(places, (self.x.height, self.x.width), strict=True)):
            wanted = begin * self.stride - self.pad, (end - 1) * self.stride - self.pad + self.kernel
            low[axis], high[axis] = max(wanted[0], 0), min(wanted[1], size)
            before[axis], after[axis] = low[axis] - wanted[0], wanted[1] - high[axis]
        if flawed and high[0] - low[0] > 1:
            high[0], after[0] = high[0] - 1, after[0] + 1
        span = (first, last) if self.depthwise else (0, self.x.channels)
        x = _cut(network, self.x, (span[0], low[0], low[1]), (span[1], high[0], high[1]))
        attributes = {
            "pads": [*before, *after],
            "strides": (self.stride, self.stride),
            "group": last - first if self.depthwise else 1,
        }
        scale = np.full(last - first, -9, np.int8)
        name = network.convolution(x, self.w[first:last], self.bias[first:last], scale, attributes, relu=self.relu)
        heights, widths = (end - begin for begin, end in places)
        value = network.value(name, last - first, heights, widths, raised=True)
        if not self.relu:
            return value
        return network.like(network.node("Clip", name, network.byte(128), network.byte(255)), value, raised=True)

    def computed(self, network: Network, *, flaw: float) -> Value:
        """The map, put together from its tiles."""
        rows, columns = (_bounds(self.random, size, 4) for size in self.extents())
        strips: list[Value] = []
        for row in rows:
            tiles: list[Value] = []
            for column in columns:
                parts = [
                    self.tile(network, (part, row, column), flawed=self.random.random() < flaw)
                    for part in _groups(self.random, self.channels)
                ]
                tiles.append(network.joined(1, parts))
            strips.append(network.joined(3, tiles))
        return network.joined(2, strips)


def _tiled(seed: int, flaw: float) -> tuple[Network, int]:
    """A network of up to three layers in random tiles, and their number."""
    random, network = np.random.default_rng(seed), Network(quantised=True)
    value, layers = network.given("x", 32, 14, 11), 0
    for _ in range(3):
        layer = _Layer(random, value)
        if min(layer.extents()) < 2:
            break
        value, layers = layer.computed(network, flaw=flaw), layers + 1
    network.gives("y", value)
    return network, layers


def _results(seed: int, flaw: float) -> Array:
    x = np.random.default_rng(seed + 1).integers(0, 256, (2, 32, 14, 11)).astype(np.uint8)
    return _tiled(seed, flaw)[0].session().run(None, {"x": x})[0]


def _not_merged(_self: Merging, _operators: object) -> None:
    """Leaves a network as it is."""


@pytest.mark.parametrize("flaw", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(20))
def test_random_tiles_give_the_same_bits_merged_and_one_by_one(
    seed: int, flaw: float, monkeypatch: pytest.MonkeyPatch, opened: list[Counter[str]]
) -> None:
    merged = _results(seed, flaw)
    monkeypatch.setattr(Merging, "merged", _not_merged)
    np.testing.assert_array_equal(merged, _results(seed, flaw))
    if not flaw:
        assert opened[0]["QLinearConv"] == _tiled(seed, flaw)[1]


def test_a_tile_that_is_padded_inside_its_map_stays_a_tile(opened: list[Counter[str]]) -> None:
    network = Network(quantised=True)
    x = network.given("x", 1, 8, 8)
    w, bias, scale = np.ones((1, 1, 3, 3), np.int8), np.zeros(1, np.int32), np.zeros(1, np.int8)

    def tile(low: int, high: int, before: int, after: int) -> Value:
        part = _cut(network, x, (0, low, 0), (1, high, 8))
        pads = [before, 1, after, 1]
        name = network.convolution(part, w, bias, scale, {"pads": pads}, relu=False)
        return network.value(name, 1, high - low + before + after - 2, 8, raised=True)

    network.gives(
        "y", network.joined(2, [tile(0, 4, 1, 1), tile(4, 8, 1, 1)])
    )  # as if rows 4 and 3 were not there
    values = np.arange(64).reshape(1, 1, 8, 8) % 7
    (found,) = network.session().run(None, {"x": (values + 128).astype(np.uint8)})
    halves = [np.pad(half, ((1, 1), (1, 1))) for half in (values[0, 0, :4], values[0, 0, 4:])]
    sums = [[[half[r : r + 3, c : c + 3].sum() for c in range(8)] for r in range(4)] for half in halves]
    np.testing.assert_array_equal(found[0, 0].astype(np.int64) - 128, np.concatenate(sums))
    assert opened[0]["QLinearConv"] == 2
