"""The type of an importer, and the importer of operators that need no code."""

from __future__ import annotations

from collections.abc import Callable

from npuc.frontend.builder import Builder, OnnxNode

Importer = Callable[[OnnxNode, Builder], None]


def same(*keys: str) -> Importer:
    """The importer of an operator that is canonical already: its inputs, and these attributes."""

    def importer(node: OnnxNode, to: Builder) -> None:
        to.emit(node, node.op, node.inputs, **{key: node.attrs[key] for key in keys})

    return importer
