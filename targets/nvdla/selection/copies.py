"""Copies of maps that are not laid out as their readers need them: an exact pass each.

An SDP copy keeps the lanes of the channels; a convolution with weights of 1 packs channels without gaps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from npuc.errors import DoesNotFit
from npuc.ir import Array, Attr, Graph, Node, type_of
from npuc.ops import rebuild
from npuc.ops.attributes import AXIS
from npuc.quantize.network.construction import Quantised
from npuc.targets.nvdla.arithmetic.integer import IDENTITY, IDLE, operands
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations.surfaces import (
    BufferView,
    Lanes,
    contiguous_lanes,
    is_view,
    lanes_of_results,
    loaded_lanes,
    tensor_precision,
    with_copies,
)
from npuc.targets.nvdla.selection.context import computed_lanes, kernels_per_atom

V = TypeVar("V")
COPY = re.compile(r".+/copy\d+")
"""Matches the names of copies."""
WEIGHTS = {"int8": np.int8, "int16": np.int16, "float32": np.float16}
"""Weight types by map type in the integer graph, where fp16 maps are float32."""


class _Copies:
    """Copies added to an integer graph, which is built once, by `made`."""

    def __init__(self, quantised: Quantised) -> None:
        self._quantised, self._names = quantised, quantised.graph.names()
        self._numbers = Counter(
            name.rpartition("/copy")[0] for name in filter(COPY.fullmatch, quantised.graph.tensors)
        )
        self._readers: dict[str, Node] = {}
        self._before: dict[str, list[Node]] = {}
        """The copies that each reader has, by its result."""
        self._constants: dict[str, Array] = {}
        self.nodes: dict[str, Node] = {}
        """The copies, by result."""
        self.graph = quantised.graph
        """The graph with the types and constants of the copies, but without their nodes."""

    def add(
        self, reader: Node, position: int, op: str, constants: Mapping[str, Array], more: Mapping[str, Attr]
    ) -> tuple[Node, Node]:
        """A new node between a reader and one of its inputs; returns it, and the reader with its result."""
        graph = self.graph
        reader = self._readers.get(reader.output, reader)
        name = reader.inputs[position]
        copy = self._names.new(f"{name}/copy{self._numbers[name]}")
        self._numbers[name] += 1
        named = {self._names.new(f"{copy}/{key}"): value for key, value in constants.items()}
        attrs: dict[str, Attr] = {**more, "x1": IDLE.as_attr(), "x2": IDLE.as_attr(), "converter": IDENTITY}
        node = Node(op, (name, *named), (copy,), attrs, copy, reader.sources)
        changed = replace(reader, inputs=(*reader.inputs[:position], copy, *reader.inputs[position + 1 :]))
        self._readers[reader.output] = changed
        self._before.setdefault(reader.output, []).append(node)
        self._constants |= named
        self.nodes[copy] = node
        types = {copy: graph.tensors[name], **{key: type_of(value) for key, value in named.items()}}
        self.graph = replace(graph, tensors={**graph.tensors, **types}, constants={**graph.constants, **named})
        return node, changed

    def inputs(self, reader: Node) -> tuple[str, ...]:
        """The inputs of a reader by now."""
        return self._readers.get(reader.output, reader).inputs

    def build(self) -> Quantised:
        """The integer graph with the copies, each just before its reader; the same object if there are none."""
        if not self.nodes:
            return self._quantised
        nodes: list[Node] = []
        for node in self._quantised.graph.nodes:
            nodes += [*self._before.get(node.output, ()), self._readers.get(node.output, node)]
        quantised = self._quantised
        return replace(
            quantised,
            graph=rebuild(quantised.graph, nodes, self._constants),
            scales=self._and_copies(quantised.scales),
            floats=self._and_copies(quantised.floats),
            zeros=self._and_copies(quantised.zeros),
            factors=self._and_copies(quantised.factors),
        )

    def _and_copies(self, known: Mapping[str, V]) -> Mapping[str, V]:
        """What is known per tensor, each copy having the entry of its tensor."""
        found = dict(known)
        for copy, node in self.nodes.items():
            if node.inputs[0] in found:
                found[copy] = found[node.inputs[0]]
        return found


def copy_maps(quantised: Quantised, nodes: Sequence[Node], loaded: Sequence[str]) -> Quantised:
    """The integer graph with copies of tensors that cannot be placed in a Concat's buffer."""
    copies = _Copies(quantised)
    for concat, name in with_copies(quantised.graph, nodes, loaded):
        inputs = copies.inputs(concat)
        copies.add(concat, len(inputs) - 1 - inputs[::-1].index(name), "NvElementwise", {}, {})
    return copies.build()


def pack_channels(quantised: Quantised, nodes: Sequence[Node], views: Mapping[str, BufferView]) -> Quantised:
    """The integer graph with copies of operands per channel that are part of a larger map: SDP reads no gaps."""
    copies = _Copies(quantised)
    for reader in nodes:
        for position, name in enumerate(reader.inputs):
            if (
                name in views
                and _per_channel(reader, views[name], views[reader.output])
                and views[name].buffer.surface_stride > views[name].buffer.atom_bytes
            ):
                copies.add(reader, position, "NvElementwise", {}, {})
    return copies.build()


def _per_channel(reader: Node, operand: BufferView, result: BufferView) -> bool:
    """Whether a node reads a single pixel of an operand for all pixels of its result."""
    extents = [(each.height, each.width) for each in (operand, result)]
    return reader.op in ("NvConv", "NvElementwise") and extents[0] == (1, 1) != extents[1]


def move_lanes(quantised: Quantised, nodes: Sequence[Node], loaded: Sequence[str], machine: Machine) -> Quantised:
    """The integer graph with copies in front of nodes that cannot use the lanes of their inputs.

    Raises DoesNotFit (E302) where such an input is a copy already: its kernels are so large that it has gaps as
    well.
    """
    copies = _Copies(quantised)
    lanes = loaded_lanes(quantised.graph, loaded)

    def lanes_of(node: Node, known: Mapping[str, Lanes]) -> Lanes:
        return computed_lanes(copies.graph, machine, node, known)

    for each in nodes:
        node = each
        while True:
            lanes |= lanes_of_results(copies.graph, node, lanes, machine, lanes_of)
            few = _few_share(copies.graph, node, lanes, machine)
            position = next(iter(_misplaced_inputs(copies.graph, node, lanes, given=bool(few))), None)
            if position is None:
                break
            _expect_no_copy(copies.nodes, node, position)
            ones = _ones(copies.graph, node.inputs[position])
            copy, node = copies.add(node, position, "NvConv", ones, few)
            lanes[copy.output] = lanes_of(copy, lanes)
    return copies.build()


def _few_share(graph: Graph, node: Node, lanes: Mapping[str, Lanes], machine: Machine) -> dict[str, Attr]:
    """The number of kernels that share an atom, as an attribute; empty if it equals the atom's lanes."""
    if node.op != "NvConv":
        return {}
    found = kernels_per_atom(graph, machine, node, lanes[node.inputs[0]])
    return {"sharing": found} if found < machine.atom_elements(tensor_precision(graph, node.output)) else {}


def _expect_no_copy(copies: Mapping[str, Node], node: Node, position: int) -> None:
    """Raises DoesNotFit (E302) if the input is a copy already."""
    made = copies.get(node.inputs[position])
    if made is not None:
        raise DoesNotFit(
            "E302",
            "not even a copy of one of its maps has its channels one behind the other: so few kernels fit",
            node=node.source,
            tensor=made.inputs[0],
            remedy="a configuration with a larger CBUF (--machine FILE), or fewer channels",
        )


def _misplaced_inputs(graph: Graph, node: Node, lanes: Mapping[str, Lanes], *, given: bool) -> list[int]:
    """Positions of the inputs whose gapped lanes must become those of another input, or contiguous.

    given: whether the result of the node has lanes of its own, not those of an operand.
    """
    gaps = [at for at, name in enumerate(node.inputs) if name in lanes and _has_gaps(lanes[name])]
    match node.op:
        case "NvLrn":
            return gaps
        case "NvConv":
            maps = [name for name in operands(node)[:4] if name in lanes]
            whole = all(graph.shape(name) == graph.shape(node.output) for name in maps)
            if whole and given:
                unlike = {name for name in maps if lanes[name] != lanes[node.output]}
                return [at for at, name in enumerate(node.inputs) if at > 1 and name in unlike]
            fit = whole and len({lanes[name] for name in maps}) < 2
            return [] if fit else [at for at in gaps if at > 1]
        case "NvElementwise" | "Interleave":
            return gaps if len({lanes[name] for name in node.inputs if name in lanes}) > 1 else []
        case "Concat" if is_view(graph, node) and AXIS(node) > 1:
            return gaps if len({lanes[name] for name in node.inputs}) > 1 else []
        case _:
            return []


def _has_gaps(lanes: Lanes) -> bool:
    return lanes != contiguous_lanes(len(lanes))


def _ones(graph: Graph, name: str) -> dict[str, Array]:
    """Identity weights: each channel of the result is that channel of the input."""
    channels = graph.shape(name)[1]
    dtype = WEIGHTS[graph.tensors[name].dtype]
    return {"w": np.eye(channels, dtype=dtype)[:, :, None, None]}
