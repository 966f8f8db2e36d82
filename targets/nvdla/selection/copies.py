"""Copies of maps that are not laid out as their readers need them: an exact pass each.

An SDP copy keeps the lanes of the channels; a convolution with weights of 1 packs channels without gaps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from npuc.errors import DoesNotFit
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import AXIS
from npuc.quantize.network.construction import Quantised
from npuc.targets.nvdla.arithmetic.attributes import IDENTITY
from npuc.targets.nvdla.arithmetic.integer import IDLE, operands
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations.surfaces import Lanes, View, contiguous, is_view, tensor_precision, with_copies
from npuc.targets.nvdla.selection.parts import sharing

V = TypeVar("V")
COPY = re.compile(r".+/copy\d+")
"""Matches the names of copies."""
WEIGHTS = {"int8": np.int8, "int16": np.int16, "float32": np.float16}
"""Weight types by map type in the integer graph, where fp16 maps are float32."""


def copied(quantised: Quantised, nodes: Sequence[Node], loaded: Sequence[str]) -> Quantised:
    """The integer graph with copies of tensors that cannot be placed in a Concat's buffer."""
    for concat, name in with_copies(quantised.graph, nodes, loaded):
        reader = next(node for node in quantised.graph.nodes if node.outputs == concat.outputs)
        position = len(reader.inputs) - 1 - reader.inputs[::-1].index(name)
        quantised = _with(quantised, reader, position, "NvElementwise", {}, {})
    return quantised


def packed(quantised: Quantised, nodes: Sequence[Node], views: Mapping[str, View]) -> Quantised:
    """The integer graph with copies of operands per channel that are part of a larger map: SDP reads no gaps."""
    for reader in nodes:
        for position, name in enumerate(reader.inputs):
            if name in views and _per_channel(reader, views[name], views[reader.output]):
                now = next(node for node in quantised.graph.nodes if node.outputs == reader.outputs)
                if views[name].buffer.surface_stride > views[name].buffer.atom_bytes:
                    quantised = _with(quantised, now, position, "NvElementwise", {}, {})
    return quantised


def _per_channel(reader: Node, operand: View, result: View) -> bool:
    """Whether a node reads a single pixel of an operand for all pixels of its result."""
    extents = [(each.height, each.width) for each in (operand, result)]
    return reader.op in ("NvConv", "NvElementwise") and extents[0] == (1, 1) != extents[1]


def relaned(
    quantised: Quantised, nodes: Sequence[Node], lanes: Mapping[str, Lanes], machine: Machine
) -> Quantised:
    """The integer graph with one copy in front of the first node that cannot use the lanes of one of its inputs.

    lanes: of every tensor of the nodes. Returns the same object if there is no such node. Raises DoesNotFit (E302)
    where that input is such a copy already: its kernels are so large that the copy has gaps as well.
    """
    graph = quantised.graph
    for node in nodes:
        few = _few_share(graph, node, lanes, machine)
        for position in _misplaced(graph, node, lanes, given=bool(few)):
            _expect_no_copy(graph, node, position)
            return _with(quantised, node, position, "NvConv", _ones(graph, node.inputs[position]), few)
    return quantised


def _few_share(graph: Graph, node: Node, lanes: Mapping[str, Lanes], machine: Machine) -> dict[str, Attr]:
    """The number of kernels that share an atom, as an attribute; empty if it equals the atom's lanes."""
    if node.op != "NvConv":
        return {}
    found = sharing(graph, machine, node, lanes[node.inputs[0]])
    return {"sharing": found} if found < machine.atom_elements(tensor_precision(graph, node.output)) else {}


def _expect_no_copy(graph: Graph, node: Node, position: int) -> None:
    """Raises DoesNotFit (E302) if the input is the result of such a convolution already."""
    made = graph.producers.get(node.inputs[position])
    if made is not None and made.op == "NvConv" and COPY.fullmatch(made.output):
        raise DoesNotFit(
            "E302",
            "not even a copy of one of its maps has its channels one behind the other: so few kernels fit",
            node=node.source,
            tensor=made.inputs[0],
            remedy="a configuration with a larger CBUF (--machine FILE), or fewer channels",
        )


def _misplaced(graph: Graph, node: Node, lanes: Mapping[str, Lanes], *, given: bool) -> list[int]:
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
    return lanes != contiguous(len(lanes))


def _ones(graph: Graph, name: str) -> dict[str, Array]:
    """Identity weights: each channel of the result is that channel of the input."""
    channels = graph.shape(name)[1]
    dtype = WEIGHTS[graph.tensors[name].dtype]
    return {"w": np.eye(channels, dtype=dtype)[:, :, None, None]}


def _with(
    quantised: Quantised,
    reader: Node,
    position: int,
    op: str,
    constants: Mapping[str, Array],
    more: Mapping[str, Attr],
) -> Quantised:
    """The graph with a new node between a reader and one of its inputs."""
    graph, name = quantised.graph, reader.inputs[position]
    names = graph.names()
    copy = names.new(f"{name}/copy{sum(each.output.startswith(f'{name}/copy') for each in graph.nodes)}")
    attrs: dict[str, Attr] = {**more, "x1": IDLE.as_attr(), "x2": IDLE.as_attr(), "converter": IDENTITY}
    named = {names.new(f"{copy}/{key}"): value for key, value in constants.items()}
    made = Node(op, (name, *named), (copy,), attrs, copy, reader.sources)
    inputs = (*reader.inputs[:position], copy, *reader.inputs[position + 1 :])
    nodes = [replace(node, inputs=inputs) if node is reader else node for node in graph.nodes]
    return replace(
        quantised,
        graph=rebuild(graph, [*nodes, made], {**graph.constants, **named}),
        scales=_and_copy(quantised.scales, name, copy),
        floats=_and_copy(quantised.floats, name, copy),
        zeros=_and_copy(quantised.zeros, name, copy),
        factors=_and_copy(quantised.factors, name, copy),
    )


def _and_copy(known: Mapping[str, V], name: str, copy: str) -> Mapping[str, V]:
    """What is known per tensor, the copy having the tensor's entry."""
    return {**known, copy: known[name]} if name in known else known
