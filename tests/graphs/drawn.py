"""Whole graphs: operators, and patterns of the passes' own tests between them, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from npuc.ir import Graph
from tests.graphs.declared import declared
from tests.graphs.drawing import MOST_ELEMENTS, Drawing, Shape
from tests.graphs.operators import OPERATORS
from tests.graphs.splicing import splice

EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 8)


def first_shape(net: Drawing, extents: Sequence[int] = EXTENTS) -> Shape:
    """The shape of an input: most often an image, else of rank 2 to 5; the batch may be above 1."""
    rank = net.pick((4, 4, 4, 4, 3, 2, 2, 5))
    batch = net.pick((1, 1, 1, 2, 3))
    if rank == 2:
        return (batch, net.pick((1, 3, 5, 8, 16, 66, 70, 130)))
    if rank == 4 and net.chance(0.06):
        return (1, net.pick((33, 65)), net.number(1, 3), net.number(1, 3))
    while True:
        shape = (batch, *(net.pick(extents) for _ in range(rank - 1)))
        if prod(shape) <= net.most_elements // 3:
            return shape


def draw(
    seed: int,
    *,
    steps: tuple[int, int] = (1, 9),
    extents: Sequence[int] = EXTENTS,
    most_elements: int = MOST_ELEMENTS,
) -> Drawing:
    """A network of so many steps, each an operator or a whole pattern, on inputs of such extents."""
    net = Drawing(seed, most_elements)
    net.input(first_shape(net, extents))
    if net.chance(0.15):
        net.input(net.shape("x0") if net.chance(0.5) else first_shape(net, extents))
    for _ in range(net.number(*steps)):
        if net.chance(0.3):
            splice(net)
        elif net.chance(0.15):
            declared(net)
        else:
            net.pick(OPERATORS)(net)
    while not [name for name in net.computed if name not in net.inputs]:
        net.node(net.pick(("Relu", "Neg", "Tanh")), "x0")
    return net


def outputs_of(net: Drawing) -> list[str]:
    """The last result, and now and then others in the middle or an input."""
    results = [name for name in net.computed if name not in net.inputs]
    chosen = [results[-1]] + [name for name in results[:-1] if net.chance(0.12)]
    if net.chance(0.2):
        chosen.reverse()
    return list(dict.fromkeys(chosen))


def drawn(seed: int, **limits: Any) -> tuple[Graph, Drawing]:
    """The graph of a seed, and how it was drawn: with feeds and all values. limits: as of `draw`."""
    net = draw(seed, **limits)
    return net.graph(outputs_of(net)), net
