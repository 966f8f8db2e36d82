"""ONNX operator -> canonical nodes: one table, keyed by the ONNX name.

An importer gets the node with its attributes and the graph under construction, and emits canonical nodes.
"""

from __future__ import annotations

from npuc.frontend.importers import (
    activation,
    attention,
    choices,
    einsum,
    elementwise,
    fused,
    integers,
    linear,
    movement,
    normalisation,
    quantisation,
    recurrent,
    reduction,
    resizing,
    shapes,
    slices,
    windows,
)
from npuc.frontend.importers.importer import Importer

IMPORTERS: dict[str, Importer] = {
    **activation.IMPORTERS,
    **attention.IMPORTERS,
    **choices.IMPORTERS,
    **einsum.IMPORTERS,
    **elementwise.IMPORTERS,
    **fused.IMPORTERS,
    **integers.IMPORTERS,
    **linear.IMPORTERS,
    **movement.IMPORTERS,
    **normalisation.IMPORTERS,
    **quantisation.IMPORTERS,
    **recurrent.IMPORTERS,
    **reduction.IMPORTERS,
    **resizing.IMPORTERS,
    **shapes.IMPORTERS,
    **slices.IMPORTERS,
    **windows.IMPORTERS,
}
