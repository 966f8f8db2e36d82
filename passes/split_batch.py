"""Networks of one image in place of a network of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from npuc.ir import Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.resize import scales_of
from npuc.passes.batch_to_channels import POOLS
from npuc.passes.layout import BINARY, UNARY

MOST_SAMPLES = 64
"""A larger batch stays: its program would be as many times as long."""

IMAGES = ("Conv", "ConvTranspose", "BatchNormalization", "DepthToSpace", "SpaceToDepth", *POOLS)
"""Operators that take images one by one."""


def split_batch(graph: Graph) -> Graph:
    """Convolutions on N images become N convolutions on one image, with Slices before and a Concat behind.

    So do all operators around them that treat the samples apart, so that slices and Concat stand at the border of
    the region only. Pooling, and convolutions of single channels, that no such region reaches take the samples as
    further channels: (N, C, H, W) -> (1, N * C, H, W).
    """
    region = _region(graph)
    return _Samples(graph, region).result() if region else graph


def _batch(graph: Graph, node: Node) -> int:
    shape = graph.shape(node.output)
    return shape[0] if shape else 1


def _is_dense(graph: Graph, node: Node) -> bool:
    """A convolution over several channels with a constant weight."""
    constant = node.op in ("Conv", "ConvTranspose") and node.inputs[1] in graph.constants
    return constant and len(graph.shape(node.output)) == 4 and not _is_depthwise(graph, node)


def _is_depthwise(graph: Graph, node: Node) -> bool:
    group = node.integer("group", 1)
    return node.op == "Conv" and group == graph.shape(node.inputs[0])[1] == graph.shape(node.output)[1]


def _region(graph: Graph) -> set[str]:
    """The first outputs of the nodes to be split: convolutions, and what treats samples apart beside them."""
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
    """The node's attributes for one sample, if it treats the samples of axis 0 apart; else None."""
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
            return {"shape": (1, *node.integers("shape")[1:])}
        case "Resize":
            unchanged = scales_of(node)[0] == 1
            return {**node.attrs, "sizes": (1, *node.integers("sizes")[1:])} if unchanged else None
        case "Concat" | "Split":
            return node.attrs if node.integer("axis") and len(computed) == len(node.inputs) else None
        case "Slice":
            return node.attrs if 0 not in node.integers("axes") else None
        case "Transpose":
            return node.attrs if node.integers("perm")[0] == 0 else None
        case "Pad":
            pads = node.integers("pads")
            return node.attrs if pads[0] == pads[len(pads) // 2] == 0 else None
        case _:
            return None


@dataclass
class _Samples:
    """The graph with the nodes of a region once per sample."""

    graph: Graph
    region: set[str]

    def result(self) -> Graph:
        self.pieces: dict[str, list[str]] = {}
        return rebuild(self.graph, self._nodes())

    def _nodes(self) -> Iterator[Node]:
        for node in self.graph.nodes:
            if node.output not in self.region:
                yield node
                continue
            N = _batch(self.graph, node)
            for name in node.inputs:
                if name and name not in self.graph.constants and name not in self.pieces:
                    yield from self._slices(name, N, node.sources)
            for name in filter(None, node.outputs):
                self.pieces[name] = [f"{name}/sample{sample}" for sample in range(N)]
            attrs = _one_sample(self.graph, node) or {}
            for sample in range(N):
                inputs, outputs = (self._piece(names, sample) for names in (node.inputs, node.outputs))
                yield replace(node, inputs=inputs, outputs=outputs, attrs=attrs, name=f"{node.name}/{sample}")
            for name in node.outputs:
                if name in self.graph.outputs or self._leaves(name):
                    pieces = tuple(self.pieces[name])
                    yield Node("Concat", pieces, (name,), {"axis": 0}, f"{name}/batch", node.sources)

    def _piece(self, names: Sequence[str], sample: int) -> tuple[str, ...]:
        return tuple(self.pieces[name][sample] if name in self.pieces else name for name in names)

    def _leaves(self, name: str) -> bool:
        return any(reader.output not in self.region for reader in self.graph.readers.get(name, ()))

    def _slices(self, name: str, N: int, sources: tuple[str, ...]) -> Iterator[Node]:
        self.pieces[name] = [f"{name}/sample{sample}" for sample in range(N)]
        for sample, piece in enumerate(self.pieces[name]):
            cut: dict[str, Attr] = {"axes": (0,), "starts": (sample,), "ends": (sample + 1,), "steps": (1,)}
            yield Node("Slice", (name,), (piece,), cut, piece, sources)
