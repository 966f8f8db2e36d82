"""Plans of tiles: the optimum is proved again by trying every plan of the class, pixels counted one by one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise, product
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import npuc
from npuc.errors import DoesNotFit, UnsupportedOperator
from npuc.ir import Array, Attr, Graph, Node, TensorType
from npuc.ops import OPS
from npuc.registry import target
from npuc.target import Options, Request
from npuc.targets.easynpu.layers.windows import whole
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.grids import Grid, shares_of, tiles_of
from npuc.targets.easynpu.plan.implicit import implicit
from npuc.targets.easynpu.plan.placement import Run, explicit
from npuc.targets.easynpu.plan.regions import outputs_of, run_of
from npuc.targets.easynpu.plan.sections import in_sections
from npuc.targets.easynpu.plan.strips import Strip, StripPlan, plans, units
from npuc.targets.easynpu.program.lowering import ways_of
from npuc.verification.metrics import Tolerance
from tests.compiled import verified
from tests.easynpu_rewrites.nets import Net

SMALL = Machine(fmap_words=70, skip_words=70, weight_words=320)


@dataclass
class Layers:
    """Integer nodes over a map (channels, rows, columns), one after the other."""

    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.shapes = {"x": self.shape}

    def conv(self, x: str, outputs: int, kernel: int = 3, stride: int = 1, group: int = 1) -> str:
        name = f"t{len(self.nodes)}"
        weights = np.full((outputs, self.shapes[x][0] // group, kernel, kernel), 1 + len(self.nodes), np.int8)
        weights += (np.arange(outputs) // 16).astype(np.int8)[:, None, None, None]
        self.constants |= {f"{name}.w": weights, f"{name}.b": np.zeros(outputs, np.int32)}
        self.constants[f"{name}.s"] = np.full(outputs, 7, np.int32)
        attrs = {"strides": (stride, stride), "pads": (kernel // 2,) * 4, "dilations": (1, 1), "group": group}
        shape = (outputs, *(-(-extent // stride) for extent in self.shapes[x][1:]))
        return self._node("IntConv", (x, f"{name}.w", f"{name}.b", f"{name}.s"), shape, attrs | {"relu": 0})

    def add(self, x: str, y: str, **attrs: Attr) -> str:
        return self._node("IntAdd", (x, y), self.shapes[x], {"shift": 1, "relu": 0} | attrs)

    def pool(self, x: str) -> str:
        depth, height, width = self.shapes[x]
        attrs = {"kernel_shape": (2, 2), "strides": (2, 2)}
        return self._node("MaxPool", (x,), (depth, height // 2, width // 2), attrs)

    def _node(self, op: str, inputs: Sequence[str], shape: tuple[int, ...], attrs: Mapping[str, Attr]) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(Node(op, tuple(inputs), (name,), attrs, name, (name,)))
        self.shapes[name] = shape
        return name

    def graph(self) -> Graph:
        types = {name: TensorType(each.shape, str(each.dtype)) for name, each in self.constants.items()}
        types |= {name: TensorType((1, *shape), "int8") for name, shape in self.shapes.items()}
        return Graph("net", tuple(self.nodes), ("x",), (self.nodes[-1].output,), self.constants, types, OPS)


def chain() -> Graph:
    net = Layers((16, 12, 10))
    net.conv(net.conv(net.conv("x", 16), 16), 32, stride=2)
    return net.graph()


def residual() -> Graph:
    net = Layers((16, 9, 9))
    y = net.conv("x", 16)
    z = net.conv(y, 16, kernel=1)
    net.conv(net.add(net.conv(z, 16), y), 16, kernel=1)
    return net.graph()


def depthwise_and_pool() -> Graph:
    net = Layers((32, 10, 8))
    net.conv(net.pool(net.conv(net.conv("x", 32, group=32), 48, kernel=1)), 48, group=48)
    return net.graph()


def heavy_weights() -> Graph:
    """48 outputs of 16 inputs take 3 * (5 + 144) words: more than the weight DTCM, so parts of the channels."""
    net = Layers((16, 6, 6))
    net.conv(net.conv("x", 48), 16, kernel=1)
    return net.graph()


def scaled_and_summed() -> Graph:
    """Scales of 32 channels, and 48 outputs of them that take 3 * (5 + 32 * 9) words: maps lie in sections."""
    net = Layers((32, 5, 7))
    net.conv(net.conv("x", 32, kernel=1, group=32), 48)
    return net.graph()


NETS = {each.__name__: each for each in (chain, residual, depthwise_and_pool, heavy_weights, scaled_and_summed)}


class Pixels:
    """What a range moves and computes in tiles, from the pixels that every output pixel depends on."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], machine: Machine) -> None:
        self.graph, self.nodes, self.machine = graph, nodes, machine
        inside = {node.output for node in nodes}
        readers = [node for node in graph.nodes if node not in nodes]
        self.outputs = [n for n in inside if n in graph.outputs or any(n in each.inputs for each in readers)]

    def strips(self) -> Iterator[tuple[Strip, int, int]]:
        """Every grid with its traffic in words and its multiplying cycles."""
        depth, height, width = self.graph.shape(self.outputs[0])[1:]
        behind = all(node.op != "IntConv" or node.integer("group") > 1 for node in self.nodes[1:])
        parts = range(1, -(-depth // 16) + 1) if behind else range(1, 2)
        for grid in product(parts, range(1, min(height, 16) + 1), range(1, min(width, 16) + 1)):
            if all(_useful(extent, n) for extent, n in zip((-(-depth // 16), height, width), grid, strict=True)):
                traffic, cycles = self._cost(grid)
                yield Strip(tuple(self.nodes), Grid(*grid), traffic, cycles), traffic, cycles

    def _cost(self, grid: tuple[int, int, int]) -> tuple[int, int]:
        rows, columns = self._axis(1, grid[1]), self._axis(2, grid[2])
        groups = self._groups(grid[0])
        weights = [sum(self._weights(node, part[node.output]) for node in self.nodes) for part in groups]
        resident = max(weights) <= self.machine.weight_words
        traffic = sum(weights) * (1 if resident else len(rows) * len(columns))
        traffic += sum(_words(self.graph, name) for name in self.outputs)
        produced = {node.output for node in self.nodes}
        cycles = 0
        for part, row, column in product(groups, rows, columns):
            for name in part:
                pixels = part[name] * len(row[name]) * len(column[name])
                if name not in produced:
                    traffic += pixels
            for node in self.nodes:
                area = part[node.output] * len(row[node.output]) * len(column[node.output])
                cycles += area * self._taps(node)
        return traffic, cycles

    def _axis(self, axis: int, tiles: int) -> list[dict[str, range]]:
        """For every tile the rows (or columns) of every tensor, by asking which taps meet which pixels."""
        extent = self.graph.shape(self.outputs[0])[axis + 1]
        bounds = [extent * tile // tiles for tile in range(tiles + 1)]
        found: list[dict[str, range]] = []
        for first, end in pairwise(bounds):
            asked: dict[str, set[int]] = {name: set(range(first, end)) for name in self.outputs}
            for node in reversed(self.nodes):
                if node.output not in asked:
                    continue
                for name in (each for each in node.inputs if each not in self.graph.constants):
                    asked.setdefault(name, set()).update(self._met(node, name, axis, asked[node.output]))
            found.append({name: range(min(each), max(each) + 1) for name, each in asked.items()})
        return found

    def _met(self, node: Node, name: str, axis: int, wanted: set[int]) -> set[int]:
        if node.op == "IntAdd":
            return wanted
        extent = self.graph.shape(name)[axis + 1]
        pooled = node.op == "MaxPool"
        kernel = 2 if pooled else self.graph.shape(node.inputs[1])[2]
        stride, padding = node.integers("strides")[0], 0 if pooled else node.integers("pads")[0]
        met = {at * stride - padding + tap for at in wanted for tap in range(kernel)} & set(range(extent))
        last = self.graph.shape(node.output)[axis + 1] - 1
        return met | ({extent - 1} if last in wanted else set())

    def _groups(self, parts: int) -> list[dict[str, int]]:
        """For every part of the channels the 16-channel groups of every tensor."""
        total = -(-self.graph.shape(self.outputs[0])[1] // 16)
        found: list[dict[str, int]] = []
        for first, end in pairwise([total * part // parts for part in range(parts + 1)]):
            held = {name: end - first for node in self.nodes for name in node.outputs}
            if parts == 1:
                held = {name: -(-self.graph.shape(name)[1] // 16) for name in held}
            for node in self.nodes:
                for name in (each for each in node.inputs if each not in self.graph.constants):
                    dense = node.op == "IntConv" and node.integer("group") == 1
                    held.setdefault(
                        name, -(-self.graph.shape(name)[1] // 16) if dense or parts == 1 else end - first
                    )
            found.append(held)
        return found

    def _taps(self, node: Node) -> int:
        if node.op == "IntConv":
            return prod(self.graph.shape(node.inputs[1])[1:])
        return 4 if node.op == "MaxPool" else 1

    def _weights(self, node: Node, groups: int) -> int:
        return {"IntConv": 5 + self._taps(node), "IntAdd": 5, "MaxPool": 0}[node.op] * groups

    def fits(self, strip: Strip) -> bool:
        """Whether every tile can be lowered: in sections only what the class allows, the rest as a whole."""
        for tile in tiles_of(self.graph, strip.nodes, strip.grid):
            try:
                as_a_whole(run_of(self.graph, strip.nodes, self.machine, tile, documented=False), self.machine)
            except DoesNotFit:
                if not self._may_lie_in_sections(strip.grid):
                    return False
                try:
                    in_sections(self.graph, strip.nodes, self.machine, tile)
                except DoesNotFit:
                    return False
        return True

    def _may_lie_in_sections(self, grid: Grid) -> bool:
        """One layer that sums over channels, weights that are loaded for every tile, and all channels at once."""
        dense = [node for node in self.nodes if node.op == "IntConv" and node.integer("group") == 1]
        weights = sum(self._weights(node, -(-self.graph.shape(node.output)[1] // 16)) for node in self.nodes)
        return len(dense) == 1 and weights > self.machine.weight_words and grid.channels == 1


def as_a_whole(run: Run, machine: Machine) -> None:
    """Raises DoesNotFit where a run has no room as a whole; a run at the document's addresses has."""
    try:
        implicit(run, machine)
    except (UnsupportedOperator, DoesNotFit):
        explicit(run, machine)


def _useful(extent: int, tiles: int) -> bool:
    """Whether no smaller number of tiles is as fine."""
    return tiles == 1 or -(-extent // tiles) < -(-extent // (tiles - 1))


def _words(graph: Graph, name: str) -> int:
    channels, height, width = graph.shape(name)[1:]
    return -(-channels // 16) * height * width


def every_plan(graph: Graph, machine: Machine) -> Iterator[tuple[tuple[int, int], ...]]:
    """The ranges of every way to cut the nodes at the given points."""
    points = units(graph, graph.nodes, machine)
    for count in range(len(points) - 1):
        for cuts in combinations(points[1:-1], count):
            yield tuple(pairwise((points[0], *cuts, points[-1])))


@cache
def reproved(name: str, objective: str) -> float:
    """The least cost of all plans: every range's cheapest grid that can be lowered, over every way to cut."""
    graph, weight = NETS[name](), {"traffic": 1e6, "time": 16.0}[objective]

    @cache
    def cheapest(first: int, end: int) -> float:
        pixels = Pixels(graph, graph.nodes[first:end], SMALL)
        costs = sorted(
            (cycles + traffic * weight, number, strip)
            for number, (strip, traffic, cycles) in enumerate(pixels.strips())
        )
        return next((cost for cost, _, strip in costs if pixels.fits(strip)), float("inf"))

    return min(sum(cheapest(*each) for each in ranges) for ranges in every_plan(graph, SMALL))


def planned(name: str) -> tuple[Graph, dict[str, StripPlan]]:
    graph = NETS[name]()
    outputs = {each: whole(graph, each) for each in outputs_of(graph, graph.nodes)}
    run = run_of(graph, graph.nodes, SMALL, outputs, documented=False)
    return graph, plans(graph, graph.nodes, SMALL, shares_of(run.jobs))


@pytest.mark.parametrize("objective", ["traffic", "time"])
@pytest.mark.parametrize("name", NETS)
def test_no_plan_of_the_class_costs_less(name: str, objective: str) -> None:
    _, found = planned(name)
    plan, weight = found[objective], {"traffic": 1e6, "time": 16.0}[objective]
    cost = plan.traffic_words * weight + plan.halo_cycles + plan.least_cycles
    assert cost == pytest.approx(reproved(name, objective), rel=1e-12)


@pytest.mark.parametrize("objective", ["traffic", "time"])
@pytest.mark.parametrize("name", NETS)
def test_the_program_moves_what_its_plan_says(name: str, objective: str) -> None:
    graph = NETS[name]()
    found, place = ways_of(graph, graph.nodes, SMALL, False, objective)[-1]
    words, resident = 0, b""
    for placement in place():
        stages = [stage for job in placement.jobs for stage in job.job.stages]
        stream = np.concatenate([stage.block for stage in stages]).tobytes()
        words += len(stream) // 16 if stream != resident else 0
        words += sum(each.window.words for each in (*placement.inputs, *placement.outputs))
        resident = stream
    assert words == found[objective].traffic_words


def test_where_everything_fits_nothing_is_computed_twice() -> None:
    graph = chain()
    [(found, place)] = ways_of(graph, graph.nodes, replace(SMALL, fmap_words=1000), False, "traffic")
    assert {plan.halo_cycles for plan in found.values()} == {0}
    maps = sum(each.window.words for each in (p for q in place() for p in (*q.inputs, *q.outputs)))
    assert maps == 12 * 10 + 2 * 6 * 5


def test_planning_holds_the_ranges_of_one_end_at_a_time() -> None:
    """A signal of more than 16 x 256 elements has about 4,000 tiles per tensor to consider."""
    net, x = Layers((16, 1, 6000)), "x"
    for _ in range(36):
        x = net.conv(x, 16, kernel=1)
    graph = net.graph()
    outputs = {each: whole(graph, each) for each in outputs_of(graph, graph.nodes)}
    shares = shares_of(run_of(graph, graph.nodes, Machine(), outputs, documented=False).jobs)
    tracemalloc.start()
    try:
        assert plans(graph, graph.nodes, Machine(), shares)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()


ENLARGING = """
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Relu (a)
    c = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (b, k)
    d = Relu (c)
    e = Conv <pads = [1, 1, 1, 1]> (d, v)
    y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (e, , s)
"""
BANDS = """
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Slice (a, zero, four, rows)
    c = Slice (a, four, nine, rows)
    d = Conv <pads = [1, 1, 1, 1]> (b, v)
    e = Conv <pads = [1, 1, 1, 1]> (c, u)
    f = Concat <axis = 2> (d, e)
    y = Add (f, a)
"""
TILED = {
    "a signal of more than 16 tiles of 256 samples": Net(
        (1, 1, 9000),
        (1, 16, 9000),
        "a = Conv <pads = [2, 2]> (x, w) y = Relu (a)",
        {"w": (16, 1, 5)},
    ),
    "phases that are interleaved": Net(
        (1, 3, 61, 53),
        (1, 8, 244, 212),
        ENLARGING,
        {
            "w": (16, 3, 3, 3),
            "k": (16, 12, 3, 3),
            "v": (8, 12, 3, 3),
            "s": np.array([1, 1, 2, 2], np.float32),
        },
    ),
    "bands of rows": Net(
        (1, 3, 9, 300),
        (1, 16, 9, 300),
        BANDS,
        {
            "w": (16, 3, 3, 3),
            "v": (16, 16, 3, 3),
            "u": (16, 16, 3, 3),
            "zero": np.array([0]),
            "four": np.array([4]),
            "nine": np.array([9]),
            "rows": np.array([2]),
        },
    ),
}


@pytest.mark.parametrize("name", TILED)
def test_what_moves_elements_is_tiled_along_the_axes_that_it_leaves_alone(name: str, tmp_path: Path) -> None:
    onnx.save(TILED[name].model(), tmp_path / "m.onnx")
    loaded, report = verified(
        Request(tmp_path / "m.onnx", target("easynpu"), Options()), tmp_path, (3, 5), Tolerance()
    )
    assert report["bit_exact"] is True
    assert loaded.manifest["report"]["host_steps"] == []
    traffic = loaded.manifest["report"]["host_traffic"]
    words = prod(TILED[name].x[2:]) + prod(TILED[name].y[2:])
    assert traffic["map_bytes"] + traffic["weight_bytes"] < 1.5 * (16 * words + 5000)


def test_no_segment_only_joins_the_maps_of_a_concat_that_no_dtcm_holds() -> None:
    """Its reader loads both maps side by side."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,32,13,13] x) => (float[1,1000,13,13] y) {'
        " a = Conv(x, w1) b = Conv<pads=[1,1,1,1]>(x, w3) c = Concat<axis=1>(a, b) y = Conv(c, w) }"
    )
    model, random = parser.parse_model(text), np.random.default_rng(0)
    for name, shape in (("w1", (256, 32, 1, 1)), ("w3", (256, 32, 3, 3)), ("w", (1000, 512, 1, 1))):
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    compiled = npuc.compile(model, "easynpu", calibration="synthetic", options=Options(level="0"))
    counts = [step["count"] for step in compiled.program.manifest["steps"] if step["kind"] == "segment"]
    assert counts and all(counts)
    data = random.standard_normal((1, 32, 13, 13)).astype(np.float32)
    assert npuc.verify(model, compiled, data)["bit_exact"]
