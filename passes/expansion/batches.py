"""Networks of a batch as networks of one image: sample by sample, stacked as rows, or as channels.

A stacked map is (1, C, N * H, W). A fully connected layer is a convolution whose window covers one sample and
advances by a whole one, so that its weights are needed once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import AXES, AXIS, GROUP, PERM, SCALES, SHAPE, SIDES, SIZES
from npuc.ops.windows import window_of
from npuc.passes.expansion.images import TIDY, ImageLimits
from npuc.passes.rewriting.layout import BINARY, UNARY
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.text.escaping import Names

MOST_SAMPLES = 64
"""The largest batch to split: the program grows by this factor."""

POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
IMAGES = ("Conv", "ConvTranspose", "BatchNormalization", "DepthToSpace", "SpaceToDepth", *POOLS)
"""Operators that process images one by one."""


@frozen
class SplitBatch:
    """Convolutions on N images become N convolutions on one image, with Slices before and a Concat after.

    The same is done to all surrounding operators that process samples separately, so that Slices and Concat are
    only at the region's boundary. Pooling and depthwise convolutions outside such regions treat the samples as
    further channels: (N, C, H, W) -> (1, N * C, H, W).
    """

    limits: ImageLimits
    """Limits of the maps that vectors become for fully connected layers."""
    most_lines: int = 0
    """Fully connected layers on maps of up to this many lines process all samples at once, stacked vertically."""
    __name__ = "split_batch"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with networks of one image."""
        region = _region(graph)
        if not region:
            return graph
        return _Samples(graph, region, _stacked_layers(graph, region, self.limits, self.most_lines)).result()


def _batch(graph: Graph, node: Node) -> int:
    shape = graph.shape(node.output)
    return shape[0] if shape else 1


def _is_dense(graph: Graph, node: Node) -> bool:
    """Whether it is a convolution over several channels with a constant weight."""
    constant = node.op in ("Conv", "ConvTranspose") and node.inputs[1] in graph.constants
    return constant and len(graph.shape(node.output)) == 4 and not _is_depthwise(graph, node)


def _is_depthwise(graph: Graph, node: Node) -> bool:
    group = GROUP(node)
    return node.op == "Conv" and group == graph.shape(node.inputs[0])[1] == graph.shape(node.output)[1]


def _region(graph: Graph) -> set[str]:
    """First outputs of the nodes to split: convolutions, and adjacent nodes that process samples separately."""
    apart = {node.output for node in graph.nodes if _one_sample(graph, node) is not None}
    waiting = [node for node in graph.nodes if _is_dense(graph, node)]
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.output not in apart or node.output in found:
            continue
        found.add(node.output)
        waiting += [graph.producers[name] for name in node.inputs if name in graph.producers]
        waiting += [reader for name in node.outputs if name for reader in graph.readers[name]]
    return found


def _one_sample(graph: Graph, node: Node) -> Mapping[str, Attr] | None:
    """The node's attributes for one sample, if it processes the samples of axis 0 separately; otherwise None."""
    N = _batch(graph, node)
    computed = [name for name in node.inputs if name and name not in graph.constants]
    shapes = [graph.shape(name) for name in (*computed, *filter(None, node.outputs))]
    if not 1 < N <= MOST_SAMPLES or any(shape[:1] != (N,) for shape in shapes):
        return None
    rank = len(graph.shape(node.output))
    match node.op:
        case op if op in IMAGES or op in UNARY or op == "Gemm":
            return node.attrs if computed == list(node.inputs[:1]) else None
        case op if op in BINARY:
            given = [graph.shape(name) for name in node.inputs if name in graph.constants]
            shared = all(len(shape) < rank or shape[0] == 1 for shape in given)
            return node.attrs if shared and all(len(shape) == rank for shape in shapes) else None
        case "Reshape":
            return {"shape": (1, *SHAPE(node)[1:])}
        case "Resize":
            unchanged = SCALES(node)[0] == 1
            return {**node.attrs, "sizes": (1, *SIZES(node)[1:])} if unchanged else None
        case "Concat" | "Split":
            return node.attrs if AXIS(node) and len(computed) == len(node.inputs) else None
        case "Slice":
            return node.attrs if 0 not in AXES(node) else None
        case "Transpose":
            return node.attrs if PERM(node)[0] == 0 else None
        case "Pad":
            pads = SIDES(node)
            return node.attrs if pads[0] == pads[len(pads) // 2] == 0 else None
        case _:
            return None


@dataclass
class _Samples:
    """The graph with the nodes of a region repeated per sample, or once for all samples stacked vertically."""

    graph: Graph
    region: set[str]
    layers: Mapping[str, _Covering | None]

    def result(self) -> Graph:
        self.pieces: dict[str, list[str]] = {}
        self.stacked: dict[str, str] = {}
        self.constants: dict[str, Array] = {}
        self.fresh = self.graph.names()
        return rebuild(self.graph, list(self._nodes()), self.constants)

    def _nodes(self) -> Iterator[Node]:
        for node in self.graph.nodes:
            if node.output not in self.region:
                yield node
            elif node.output in self.layers:
                yield from self._at_once(node, self.layers[node.output])
            else:
                yield from self._one_by_one(node)

    def _one_by_one(self, node: Node) -> Iterator[Node]:
        for name in node.inputs:
            if name and name not in self.graph.constants:
                yield from self._apart(name, node.sources)
        for name in filter(None, node.outputs):
            self.pieces[name] = self._names(name)
        attrs = _one_sample(self.graph, node) or {}
        for sample in range(_batch(self.graph, node)):
            inputs, outputs = (self._piece(names, sample) for names in (node.inputs, node.outputs))
            yield replace(node, inputs=inputs, outputs=outputs, attrs=attrs, name=f"{node.name}/{sample}")
        for name in filter(self._leaves, node.outputs):
            yield Node("Concat", tuple(self.pieces[name]), (name,), {"axis": 0}, f"{name}/batch", node.sources)

    def _at_once(self, node: Node, layer: _Covering | None) -> Iterator[Node]:
        name = node.output
        if node.op == "Reshape":
            self.stacked[name] = self.stacked[node.inputs[0]]
        elif layer is None:
            self.stacked[name] = self.fresh.new(f"{name}/stacked")
            inputs = tuple(self.stacked.get(each, each) for each in node.inputs)
            yield replace(node, inputs=inputs, outputs=(self.stacked[name],))
        else:
            yield from self._together(layer.map, layer.sample, node.sources)
            names = self.stacked[layer.map], self.fresh.new(f"{name}/stacked")
            convolution, constants = _stacked_convolution(self.graph, node, layer, names, self.fresh)
            self.stacked[name] = names[1]
            self.constants |= constants
            yield convolution
        if self._leaves(name):
            pixels, given = self.fresh.new(f"{name}/samples"), self.graph.shape(name)
            yield Node("Transpose", (self.stacked[name],), (pixels,), {"perm": (2, 1, 0, 3)}, pixels, node.sources)
            yield Node("Reshape", (pixels,), (name,), {"shape": given}, f"{name}/batch", node.sources)

    def _piece(self, names: Sequence[str], sample: int) -> tuple[str, ...]:
        return tuple(self.pieces[name][sample] if name in self.pieces else name for name in names)

    def _names(self, name: str) -> list[str]:
        return [self.fresh.new(f"{name}/sample{sample}") for sample in range(self.graph.shape(name)[0])]

    def _leaves(self, name: str) -> bool:
        readers = self.graph.readers.get(name, ())
        return bool(name) and (
            name in self.graph.outputs or any(each.output not in self.region for each in readers)
        )

    def _apart(self, name: str, sources: tuple[str, ...]) -> Iterator[Node]:
        """The samples of a tensor as separate tensors."""
        if name in self.pieces:
            return
        self.pieces[name] = self._names(name)
        for sample, piece in enumerate(self.pieces[name]):
            if name not in self.stacked:
                yield Node("Slice", (name,), (piece,), _cut(0, sample), piece, sources)
                continue
            pixel, shape = self.fresh.new(f"{piece}/pixel"), (1, *self.graph.shape(name)[1:])
            yield Node("Slice", (self.stacked[name],), (pixel,), _cut(2, sample), pixel, sources)
            yield Node("Reshape", (pixel,), (piece,), {"shape": shape}, piece, sources)

    def _together(self, name: str, sample: Extents, sources: tuple[str, ...]) -> Iterator[Node]:
        """The samples of a tensor, stacked vertically."""
        if name in self.stacked:
            return
        yield from self._apart(name, sources)
        pieces = self.pieces[name]
        if len(self.graph.shape(name)) != 4:
            pieces = [self.fresh.new(f"{piece}/pixel") for piece in pieces]
            for piece, pixel in zip(self.pieces[name], pieces, strict=True):
                yield Node("Reshape", (piece,), (pixel,), {"shape": (1, *sample)}, pixel, sources)
        self.stacked[name] = self.fresh.new(f"{name}/stacked")
        yield Node("Concat", tuple(pieces), (self.stacked[name],), {"axis": 2}, self.stacked[name], sources)


def _cut(axis: int, at: int) -> dict[str, Attr]:
    """A Slice of one element along an axis."""
    return {"axes": (axis,), "starts": (at,), "ends": (at + 1,), "steps": (1,)}


Extents = tuple[int, int, int]
"""Channels, height and width of a sample."""


@frozen
class _Covering:
    """A fully connected layer: its map, and one sample of it."""

    map: str
    sample: Extents


def _stacked_layers(
    graph: Graph, nodes: Collection[str], limits: ImageLimits, most_lines: int
) -> Mapping[str, _Covering | None]:
    """The nodes, by result, that can be computed for all samples at once, among those with these first outputs.

    These are fully connected layers on samples of at most `most_lines` lines, with their map; elementwise
    functions, and reshapes of pixels to rows, that follow them have None.
    """
    found: dict[str, _Covering | None] = {}
    for node in graph.nodes:
        if node.output not in nodes:
            continue
        layer = _covering(graph, node, found, limits)
        if layer is not None and layer.sample[1] <= most_lines:
            found[node.output] = layer
        elif layer is None and _follows(graph, node, found):
            found[node.output] = None
    return found


def _covering(graph: Graph, node: Node, stacked: Collection[str], limits: ImageLimits) -> _Covering | None:
    """The map and sample of a fully connected layer; None for any other node."""
    if len(node.inputs) < 2 or node.inputs[1] not in graph.constants:
        return None
    x, shape = node.inputs[0], graph.shape(node.inputs[0])
    if node.op == "Gemm":
        before = graph.producers.get(x)
        source = graph.shape(before.inputs[0]) if before is not None and before.op == "Reshape" else ()
        if before is not None and len(source) == 4 and source[0] == shape[0]:
            x, shape = before.inputs[0], source
        row = len(shape) == 2 and x not in stacked
        return _Covering(x, limits.fold(shape[1]) if row else _extents(shape))
    if node.op != "Conv" or len(shape) != 4 or GROUP(node) != 1:
        return None
    window = window_of(node, graph.shape(node.inputs[1])[2:])
    whole = window.reach == window.kernel == shape[2:] and not any((*window.begins, *window.ends))
    return _Covering(x, _extents(shape)) if whole else None


def _extents(shape: tuple[int, ...]) -> Extents:
    channels, height, width = (*shape[1:], 1, 1, 1)[:3]
    return channels, height, width


def _follows(graph: Graph, node: Node, stacked: Collection[str]) -> bool:
    """Whether a node computes only elements of stacked maps, with constants that are equal for all channels."""
    constants = [graph.constants[name] for name in node.inputs if name in graph.constants]
    computed = [name for name in node.inputs if name and name not in graph.constants]
    if not computed or not all(name in stacked for name in computed):
        return False
    if node.op == "Reshape":
        return _extents(graph.shape(node.inputs[0])) == _extents(graph.shape(node.output))
    return node.op in UNARY | BINARY and all(each.size == 1 for each in constants)


def _stacked_convolution(
    graph: Graph, node: Node, layer: _Covering, names: tuple[str, str], fresh: Names
) -> tuple[Node, dict[str, Array]]:
    """The convolution of a fully connected layer between two stacked maps, and its weights if they change."""
    window: dict[str, Attr] = {"strides": (layer.sample[1], 1)}
    weight, constants = node.inputs[1], dict[str, Array]()
    if node.op == "Gemm":
        weights = graph.constants[weight]
        weight = fresh.new(f"{node.output}/kernel")
        constants[weight] = np.ascontiguousarray(weights.reshape(len(weights), *layer.sample))
    inputs = (names[0], weight, *node.inputs[2:])
    return replace(node, op="Conv", inputs=inputs, outputs=names[1:], attrs={**node.attrs, **window}), constants


def batch_to_channels(graph: Graph) -> Graph:
    """Pooling, and depthwise convolutions, of N images become those of one: (1, N * C, H, W).

    A Reshape is added before and after; the weights of a convolution are repeated.
    """
    return rewrite(graph, _as_channels, *TIDY)


def _as_channels(rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0])
    if len(shape) != 4 or shape[0] < 2:
        return False
    N, channels = shape[:2]
    inputs: tuple[str, ...] = ()
    attrs = dict(node.attrs)
    if node.op == "Conv":
        depthwise = GROUP(node) == channels == rewriter.shape(node.output)[1]
        values = [rewriter.constants.get(name) for name in node.inputs[1:] if name]
        if not depthwise or any(value is None for value in values):
            return False
        tiled = [np.concatenate([value] * N) for value in values if value is not None]
        inputs = tuple(rewriter.constant(value, f"{node.output}/tiled") for value in tiled)
        attrs["group"] = N * channels
    elif node.op not in POOLS:
        return False
    stem, merged = f"{node.inputs[0]}/channels", (1, N * channels, *shape[2:])
    x = rewriter.part(node, "Reshape", node.inputs[:1], stem, shape=merged)
    y = rewriter.fresh(f"{node.output}/channels")
    inner = replace(node, inputs=(x.output, *inputs), outputs=(y,), attrs=attrs)
    rewriter.replace(node, x, inner, rewriter.back(node, y))
    return True
