"""Data movement between layers as reshape words: chains of int8 nodes that one word expresses become one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache

import numpy as np

from npuc.interpreter import evaluate
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import rebuild
from npuc.passes.expansion.images import is_image
from npuc.targets.easynpu.layers.addressing import interleaved, is_alias, map_shape
from npuc.targets.easynpu.layers.operators import FLAT, OPERATORS, WORD_OP
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.rearrangement import Shape, word_for

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
        nodes.append(_merged(graph, chain) or node)
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
        merged = _merged(graph, chain[:count])
        if merged is not None and fits(graph, merged):
            return chain[:count]
    return []


def _merged(graph: Graph, chain: Sequence[Node]) -> Node | None:
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
    result = _moved(moves, np.arange(channels * height * width).reshape(height, width, channels), before)
    shape: Shape = (height, width, channels)
    return word_for(result.reshape(map_shape(after)).transpose(1, 2, 0), shape)


def _moved(moves: Sequence[Move], elements: Array, shape: Sequence[int]) -> Array:
    """The elements (H, W, C) of a map, taken as a tensor of this shape, after the operators."""
    value = elements.transpose(2, 0, 1).reshape(shape)
    for op, attrs in moves:
        (value,) = evaluate(Node(op, ("x",), ("y",), dict(attrs), op), [value])
    return value
