"""ONNX operator -> canonical nodes: one table, keyed by the ONNX name.

An importer gets the node with its attributes and the graph under construction, and emits canonical nodes.
"""

from __future__ import annotations

from npuc.frontend.builder import Importer
from npuc.frontend.importers import (
    attention,
    constants,
    elementwise,
    fused,
    integers,
    movement,
    products,
    recurrent,
    reduction,
    resizing,
    windows,
)

IMPORTERS: dict[str, Importer] = {
    **attention.IMPORTERS,
    **constants.IMPORTERS,
    **elementwise.IMPORTERS,
    **fused.IMPORTERS,
    **integers.IMPORTERS,
    **movement.IMPORTERS,
    **products.IMPORTERS,
    **recurrent.IMPORTERS,
    **reduction.IMPORTERS,
    **resizing.IMPORTERS,
    **windows.IMPORTERS,
}
