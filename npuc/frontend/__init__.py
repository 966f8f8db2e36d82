"""Conversion of ONNX models to graphs of canonical, typed operators.

reading: the file and its versions; binding: shapes of the inputs; signatures: operator signatures from ONNX;
builder: the graph under construction; importers: one small function per ONNX operator; folding: constant nodes
that the operator table cannot evaluate. Tensors in files beside the model: npuc.onnx_files.external_data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from npuc.ir import Graph
from npuc.system.budget import budget

if TYPE_CHECKING:
    import onnx

Shapes = Mapping[str, tuple[int, ...]]
NO_SHAPES: Shapes = {}


def load(path: Path, input_shapes: Shapes = NO_SHAPES, *, fold_weights: bool = True) -> Graph:
    """The graph of an ONNX file; every shape is static.

    input_shapes: shapes that bind the dynamic dimensions of inputs, by name.
    fold_weights: whether DequantizeLinear of a constant becomes a float constant; if not, it stays a node whose
    inputs are the constants, so that integer weights and their scales survive.
    Raises ModelError or UnsupportedOperator with every problem of the model.
    """
    from npuc.frontend.reading import read_model

    with budget():
        model = read_model(path, whole=False)
        return import_model(model, path.parent, input_shapes, fold_weights=fold_weights)


def import_model(
    model: onnx.ModelProto,
    folder: Path | None = None,
    input_shapes: Shapes = NO_SHAPES,
    *,
    fold_weights: bool = True,
) -> Graph:
    """The graph of a model in memory; `folder` holds its external data (None: it may have none)."""
    from npuc.frontend.importing import import_nodes

    with budget():
        return import_nodes(model, folder, input_shapes, host=False, fold_weights=fold_weights).graph()
