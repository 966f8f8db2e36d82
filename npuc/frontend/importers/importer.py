"""What importers share: their type, the common shape of operands, and an importer that needs no code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npuc.frontend.builder import NodeBuilder, OnnxNode

Importer = Callable[[OnnxNode, NodeBuilder], None]


def broadcast(node: OnnxNode, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape by numpy's broadcasting; raises E105 if there is none."""
    try:
        return tuple(int(extent) for extent in np.broadcast_shapes(*shapes))
    except ValueError:
        described = " and ".join(str(list(shape)) for shape in shapes)
        raise node.bad(f"shapes {described} do not broadcast") from None


def same(*keys: str) -> Importer:
    """An importer for an operator that is already canonical, with its inputs and these attributes."""

    def importer(node: OnnxNode, to: NodeBuilder) -> None:
        to.emit(node, node.op, node.inputs, **{key: node.attrs[key] for key in keys})

    return importer
