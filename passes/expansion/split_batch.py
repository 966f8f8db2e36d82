"""Networks of one image instead of a network of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import AXES, AXIS, GROUP, PERM, SCALES, SHAPE, SIDES, SIZES
from npuc.passes.expansion.batch_to_channels import POOLS
from npuc.passes.expansion.images import ImageLimits
from npuc.passes.expansion.stacked_samples import Covering, Extents, stacked_convolution, stacked_layers
from npuc.passes.rewriting.layout import BINARY, UNARY

MOST_SAMPLES = 64
"""The largest batch to split: the program grows by this factor."""

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
        return _Samples(graph, region, stacked_layers(graph, region, self.limits, self.most_lines)).result()


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
    waiting = [node for node in graph.nodes if node.output in apart and _is_dense(graph, node)]
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
    layers: Mapping[str, Covering | None]

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

    def _at_once(self, node: Node, layer: Covering | None) -> Iterator[Node]:
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
            convolution, constants = stacked_convolution(self.graph, node, layer, names, self.fresh)
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
