"""Rewrites of the integer graph before it is planned: what words lack becomes what they have.

Chains of nodes that only move int8 elements become one node where one reshape word expresses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import AVERAGE, AXIS, BLOCKS, FUSED_INPUT, GROUP, PADDING, PADS
from npuc.ops.interpreter import evaluate
from npuc.ops.products import macs
from npuc.ops.windows import window_of
from npuc.passes.expansion.images import is_image
from npuc.targets.easynpu.layers.nodes import (
    ARRAY_OPS,
    FLAT,
    OPERATORS,
    PIXEL,
    VALUE,
    WORD_OP,
    concat_offsets,
    conv_mnemonic,
    interleaved,
    is_alias,
    map_shape,
)
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import Shape, word_for
from npuc.text.escaping import Names


def with_rows_folded(graph: Graph, machine: Machine) -> tuple[Graph, frozenset[str]]:
    """The integer graph in which the host lays out the kernel's rows as channels, and the maps that it makes.

    Of a dense convolution with a stride over a map from the host, whose rows then fill lanes that would be empty:
    (C, H, W) becomes (Hk C, Ho, W) with its padding, in fewer words. Exact: the same products.
    """
    nodes, made, constants, names = list[Node](), set[str](), dict(graph.constants), graph.names()

    def step(op: str, inputs: Sequence[str], node: Node, **attrs: Attr) -> str:
        name = names.new(f"{node.output}/rows")
        made.add(name)
        nodes.append(Node(op, tuple(inputs), (name,), attrs, name, node.sources))
        return name

    def border(shape: tuple[int, ...], node: Node) -> str:
        constants[name := names.new(f"{node.output}/border")] = np.full(shape, PADDING(node), np.int8)
        return name

    for node in graph.nodes:
        if not _folds(graph, node, machine):
            nodes.append(node)
            continue
        made.update(each.output for each in _moves_of_host(graph, node.inputs[0]) or ())
        (_, channels, H, W), (outputs, _, high, wide) = (graph.shape(each) for each in node.inputs[:2])
        window, (Ho, Wo) = window_of(node, (high, wide)), graph.shape(node.output)[2:]
        (Sh, Sw), (top, left), dilation = window.strides, window.begins, window.dilations
        columns = (Wo - 1) * Sw + window.reach[1]
        held = min(W, columns - left)
        rows: list[str] = []
        for first in (tap * dilation[0] - top for tap in range(high)):
            low, stop = max(-(first // Sh), 0), min((H - 1 - first) // Sh + 1, Ho)
            start, end = first + low * Sh, first + (stop - 1) * Sh + 1
            cut = {"axes": (2, 3), "starts": (start, 0), "ends": (end, held), "steps": (Sh, 1)}
            parts = [border((1, channels, low, held), node)] if low else []
            parts.append(step("Slice", node.inputs[:1], node, **cut))
            parts += [border((1, channels, Ho - stop, held), node)] if stop < Ho else []
            rows.append(step("Concat", parts, node, axis=2) if len(parts) > 1 else parts[0])
        x = step("Concat", rows, node, axis=1)
        beside = [left, columns - left - held]
        ends = [border((1, len(rows) * channels, Ho, each), node) if each else "" for each in beside]
        if any(ends):
            x = step("Concat", [each for each in (ends[0], x, ends[1]) if each], node, axis=3)
        w = graph.constants[node.inputs[1]].transpose(0, 2, 1, 3)
        constants[weights := names.new(f"{node.inputs[1]}/rows")] = w.reshape(outputs, -1, 1, wide)
        attrs: dict[str, Attr] = {key: each for key, each in node.attrs.items() if key != PADDING.name}
        attrs |= {
            "kernel_shape": (1, wide),
            "strides": (1, Sw),
            "dilations": (1, dilation[1]),
            "pads": (0,) * 4,
        }
        nodes.append(replace(node, inputs=(x, weights, *node.inputs[2:]), attrs=attrs))
    return (rebuild(graph, nodes, constants), frozenset(made)) if made else (graph, frozenset())


def _folds(graph: Graph, node: Node, machine: Machine) -> bool:
    """Whether a convolution reads fewer words if the host lays out its kernel's rows as channels."""
    dense = node.op == "IntConv" and GROUP(node) == BLOCKS(node) == 1 and not AVERAGE(node)
    shapes = [graph.shape(each) for each in node.inputs[:2]]
    images = all(len(each) == 4 for each in shapes)
    moves = _moves_of_host(graph, node.inputs[0]) if dense else None
    if not images or len(node.inputs) > 4 or moves is None:
        return False
    (_, channels, H, W), (_, _, high, wide) = shapes
    window, (Ho, Wo) = window_of(node, (high, wide)), graph.shape(node.output)[2:]
    (Sh, Sw), (top, _), (dilation, _) = window.strides, window.begins, window.dilations
    firsts = [tap * dilation - top for tap in range(high)]
    met = high > 1 and all(first < H and first + (Ho - 1) * Sh >= 0 for first in firsts)
    words = groups(high * channels) * Ho * ((Wo - 1) * Sw + window.reach[1])
    pixels = groups(channels) * H * W
    if moves:  # a reshape word may make the map of fewer words: it reads them, moves pieces and writes pixels
        depth, *extents = map_shape(graph.shape(moves[-1].inputs[0]))
        given, memories = groups(depth) * prod(extents), (machine.fmap_words, machine.skip_words)
        held = max(given, pixels) <= max(memories) and given + pixels <= sum(memories)
        more = (words - given) * machine.word_bytes / machine.host_bytes_per_cycle
        return met and words < pixels and (more < given + 2 * pixels or not held)
    return met and words < pixels


def _moves_of_host(graph: Graph, name: str) -> list[Node] | None:
    """The nodes that move the elements of the host's integers to a map; None if the array computes any of it."""
    found: list[Node] = []
    while (producer := graph.producers.get(name)) is not None and producer.op != "QuantizeLinear":
        if producer.op not in MOVES:
            return None
        found.append(producer)
        name = producer.inputs[0]
    return found


def with_borders(graph: Graph) -> Graph:
    """The integer graph in which maps are surrounded by a padding value other than 0, which the machine lacks.

    Most convolutions read a copy of their map that has the padding: two depthwise words of one tap, a per cent
    of a layer of 16 channels. The copy itself, and a convolution with less work, takes a second word over a
    pixel of the value. With a padding value z, the sum of a convolution is the one with zero padding plus z
    times the weights of the taps in the padding: sum(w x) + sum over taps inside the map of (-w z) + z sum(w).
    The middle term is a convolution of a constant map of z with the same window: a layer word over one pixel
    with pitches of 0, whose psums are kept for the layer's word. It doubles the cost of a depthwise layer; a
    dense layer gets as many more input channels as 8-bit weights are needed for its largest sum of weights
    (border_weights).
    """
    values = sorted({PADDING(node) for node in graph.nodes if node.op == "IntConv"} - {0})
    if not values:
        return graph
    names, constants, copies = graph.names(), dict(graph.constants), dict[tuple[Any, ...], str]()
    pixels = {value: names.new(f"padding/{value}") for value in values}
    nodes = [Node(PIXEL, (), (name,), {VALUE.name: value}, name) for value, name in pixels.items()]
    for node in graph.nodes:
        if not PADDING(node):
            nodes.append(node)
        elif (pads := _copy_padding(graph, node)) is None:
            nodes.append(replace(node, inputs=(*node.inputs, pixels[PADDING(node)])))
        else:
            x, value = node.inputs[0], PADDING(node)
            if (x, pads, value) not in copies:
                name = names.new(f"{x}/padded{'_'.join(map(str, (*pads, value)))}")
                copies[x, pads, value] = name
                channels = graph.shape(x)[1]
                given = [names.new(f"{name}/{each}") for each in ("w", "bias", "shift")]
                w, none = np.ones((channels, 1, 1, 1), np.int8), np.zeros(channels, np.int32)
                constants |= dict(zip(given, (w, none, none.astype(np.int8)), strict=True))
                told: dict[str, Attr] = {"group": channels, "pads": pads, "padding": value, "selects": 1}
                nodes.append(Node("IntConv", (x, *given, pixels[value]), (name,), told, name, node.sources))
            attrs = {key: each for key, each in node.attrs.items() if key not in (PADDING.name, PADS.name)}
            nodes.append(replace(node, inputs=(copies[x, pads, value], *node.inputs[1:]), attrs=attrs))
    return rebuild(replace(graph, operators=OPERATORS), nodes, constants)


def _copy_padding(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The padding that a convolution reads as part of a copy of its map; None if that is not cheaper."""
    x, w = node.inputs[0], graph.constants[node.inputs[1]]
    window = window_of(node, w.shape[2:])
    pads = (*window.begins, *(max(end, 0) for end in window.ends))
    height, width = (extent + pads[k] + pads[k + 2] for k, extent in enumerate(graph.shape(x)[2:]))
    channels = graph.shape(x)[1]
    dense = conv_mnemonic(GROUP(node), channels, len(w)) == "conv"
    added = sum(prod(each.shape[1:]) for each in border_weights(w, dense=dense))
    words = added * prod(graph.shape(node.output)[2:]) * groups(len(w))
    return pads if _copy_cycles(channels, (height, width)) < words else None


def _copy_cycles(channels: int, extents: Sequence[int]) -> int:
    """Cycles of a copy: two words of one tap, one over the map and one over the pixel."""
    return 2 * prod(extents) * groups(channels)


LITTLE = 12
"""A copy takes up to a twelfth of the cycles of the convolution that reads it."""


def pads_cheaply(graph: Graph, node: Node) -> bool:
    """Whether a float convolution takes many more cycles than a copy of its map with padding."""
    if node.op != "Conv":
        return False
    channels, *extents = graph.shape(node.inputs[0])[1:]
    return macs(node, graph.tensors) >= LITTLE * _copy_cycles(channels, extents) * LANES


def border_weights(w: Array, *, dense: bool) -> list[Array]:
    """Weights (Co, channels, Hk, Wk) int8 over the constant map, which add up to the negated channel sums of w.

    Dense: one array of several channels. Channel-wise: arrays of one channel each; a weight of -128 takes two.
    """
    rest = -w.astype(np.int64).sum(axis=1, keepdims=True)
    if dense:
        channels = max(1, -(-int(np.abs(rest).max()) // 127))
        shares = np.diff(rest * np.arange(channels + 1)[:, None, None] // channels, axis=1)
        return [shares.astype(np.int8)]
    found: list[Array] = []
    while rest.any() or not found:
        found.append(np.clip(rest, -127, 127).astype(np.int8))
        rest = rest - found[-1]
    return found


def with_latest_first(graph: Graph) -> Graph:
    """The integer graph in which the first operand of every sum and product is the one computed last.

    Sums that continue on a convolution's psums keep their operands in order.
    """
    at = {name: position for position, node in enumerate(graph.nodes) for name in node.outputs}
    nodes = [_latest_first(graph, node, at) for node in graph.nodes]
    return rebuild(replace(graph, operators=OPERATORS), nodes) if nodes != list(graph.nodes) else graph


def _latest_first(graph: Graph, node: Node, at: dict[str, int]) -> Node:
    if node.op not in ("IntAdd", "IntMul") or (node.op == "IntAdd" and FUSED_INPUT(node) is not None):
        return node
    first, second, *rest = node.inputs
    swapped = at.get(second, -1) > at.get(first, -1) and graph.shape(first) == graph.shape(second)
    return replace(node, inputs=(second, first, *rest)) if swapped else node


def with_repeated(graph: Graph) -> Graph:
    """The integer graph in which Concats of copies extend broadcast operands: the document has no pitch of 0."""
    nodes: list[Node] = []
    known: dict[tuple[str, tuple[int, ...]], str] = {}
    names = graph.names()
    for node in graph.nodes:
        inputs = list(node.inputs)
        if node.op in ("IntAdd", "IntMul"):
            shape = graph.shape(node.output)
            for at, name in enumerate(inputs[:2]):
                if _is_repeated(graph.shape(name), shape):
                    key = name, shape
                    if key not in known:
                        nodes += (copies := _copies(graph, names, name, shape, node))
                        known[key] = copies[-1].output
                    inputs[at] = known[key]
        nodes.append(replace(node, inputs=tuple(inputs)))
    return rebuild(replace(graph, operators=OPERATORS), nodes) if known else graph


def _is_repeated(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    (channels, *size), (wanted, *whole) = map_shape(shape), map_shape(result)
    return len(shape) == len(result) == 4 and channels == wanted and size != whole


def _copies(graph: Graph, names: Names, name: str, shape: tuple[int, ...], reader: Node) -> list[Node]:
    found: list[Node] = []
    for axis in (2, 3):
        count = shape[axis] // graph.shape(name)[axis]
        if count > 1:
            source = found[-1].output if found else name
            result = names.new(f"{name}/{'rows' if axis == 2 else 'columns'}/{shape[axis]}")
            found.append(Node("Concat", (source,) * count, (result,), {AXIS.name: axis}, result, reader.sources))
    return found


def with_maps_apart(graph: Graph, exceeds: Callable[[str], bool]) -> Graph:
    """The integer graph in which every reader of a Concat that exceeds the DTCMs has its own, right before it.

    A map that is read several times is thus stored once, as its operands, and no plan has to hold it from one
    range of layers to the next. Nested concatenations are flattened. exceeds: whether a map is too large for the
    DTCMs. Unchanged are concatenations that fit, that no address arithmetic can do, that the array does not read,
    that repeat an operand, or that are outputs of the network.
    """
    apart = {node.output: node for node in graph.nodes if _is_apart(graph, node, exceeds)}
    nodes: list[Node] = []
    names, met = graph.names(), set[str]()
    for node in graph.nodes:
        if node.output in apart:
            continue
        inputs = list(node.inputs)
        for at, name in enumerate(inputs):
            if name in apart:
                inputs[at] = names.new(f"{name}/apart") if name in met else name
                met.add(name)
                nodes.append(replace(apart[name], inputs=_parts(apart, name), outputs=(inputs[at],)))
        nodes.append(replace(node, inputs=tuple(inputs)))
    return rebuild(graph, nodes) if apart else graph


def _is_apart(graph: Graph, node: Node, exceeds: Callable[[str], bool]) -> bool:
    if node.op != "Concat" or AXIS(node) != 1 or node.output in graph.outputs:
        return False
    if graph.tensors[node.output].dtype != "int8" or concat_offsets(graph, node) is None:
        return False
    if any(reader.op not in (*ARRAY_OPS, "Concat") for reader in graph.readers[node.output]):
        return False
    return len(set(node.inputs)) == len(node.inputs) and exceeds(node.output)


def _parts(apart: dict[str, Node], name: str) -> tuple[str, ...]:
    """The operands of a concatenation, those of nested ones included."""
    found: list[str] = []
    waiting: Sequence[str] = (name,)
    while waiting:
        first, *rest = waiting
        if first in apart:
            rest = [*apart[first].inputs, *rest]
        else:
            found.append(first)
        waiting = rest
    return tuple(found)


MOVES = ("Transpose", "Reshape", "SpaceToDepth", "DepthToSpace")
Move = tuple[str, tuple[tuple[str, Attr], ...]]
"""An operator and its sorted attributes."""


def with_reshape_words(graph: Graph, fits: Callable[[Graph, Node], bool]) -> Graph:
    """The integer graph in which reshape words replace the chains of nodes that they express.

    fits: whether the machine can hold the map and the result of such a node. Movement that address arithmetic does
    without a word (aliases, interleaved phases) or that no single word expresses is unchanged.
    """
    nodes: list[Node] = []
    replaced: set[Node] = set()
    for node in graph.nodes:
        if node in replaced:
            continue
        chain = _longest(graph, _chain(graph, node), fits)
        replaced.update(chain)
        nodes.append(_merge_chain(graph, chain) or node)
    return rebuild(replace(graph, operators=OPERATORS), nodes)


def _chain(graph: Graph, node: Node) -> list[Node]:
    """The node and its sole readers in sequence, as long as they only move int8 elements."""
    found: list[Node] = []
    following: Node | None = node
    while following is not None and _moves(graph, following):
        found.append(following)
        following = graph.only_reader(following.output)
    return found


def _moves(graph: Graph, node: Node) -> bool:
    movement = node.op in MOVES and graph.tensors[node.output].dtype == "int8"
    return movement and interleaved(graph, node) is None


def _longest(graph: Graph, chain: Sequence[Node], fits: Callable[[Graph, Node], bool]) -> Sequence[Node]:
    """The longest prefix of a chain that one word expresses and the machine holds; empty if there is none."""
    for count in range(len(chain), 0, -1):
        merged = _merge_chain(graph, chain[:count])
        if merged is not None and fits(graph, merged):
            return chain[:count]
    return []


def _merge_chain(graph: Graph, chain: Sequence[Node]) -> Node | None:
    """One node with the word of the chain; None if no word expresses it or address arithmetic suffices."""
    if not chain or all(is_alias(graph, node) for node in chain):
        return None
    first, last = chain[0], chain[-1]
    if not all(is_image(graph.shape(name)) for name in (first.inputs[0], last.output)):
        return None
    moves = tuple((node.op, tuple(sorted(node.attrs.items()))) for node in chain)
    word = _word(moves, graph.shape(first.inputs[0]), graph.shape(last.output))
    if word is None:
        return None
    fields: dict[str, Attr] = {
        name: value for name, value in asdict(word).items() if value != getattr(Reshape(), name)
    }
    if len(graph.shape(last.output)) == 2:
        fields[FLAT.name] = 1
    sources = tuple(dict.fromkeys(source for node in chain for source in node.sources))
    return Node(WORD_OP, first.inputs[:1], last.outputs, fields, last.name, sources)


@cache
def _word(moves: tuple[Move, ...], before: tuple[int, ...], after: tuple[int, ...]) -> Reshape | None:
    """The word that moves the elements of a tensor of this shape as the operators do; None if there is none."""
    channels, height, width = map_shape(before)
    result = _move_elements(moves, np.arange(channels * height * width).reshape(height, width, channels), before)
    shape: Shape = (height, width, channels)
    return word_for(result.reshape(map_shape(after)).transpose(1, 2, 0), shape)


def _move_elements(moves: Sequence[Move], elements: Array, shape: Sequence[int]) -> Array:
    """The elements (H, W, C) of a map, taken as a tensor of this shape, after the operators."""
    value = elements.transpose(2, 0, 1).reshape(shape)
    for op, attrs in moves:
        (value,) = evaluate(Node(op, ("x",), ("y",), dict(attrs), op), [value])
    return value
