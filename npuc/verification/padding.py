"""Models for onnxruntime, with the padding that ONNX defines where onnxruntime pads differently."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from npuc.errors import NpucError
from npuc.frontend.binding import with_bound
from npuc.frontend.importing import import_nodes, plain
from npuc.frontend.reading import read_model
from npuc.frontend.written_out import is_automatic
from npuc.onnx_files.wire import may_contain
from npuc.program import Program


def model_of(path: Path, shapes: Mapping[str, tuple[int, ...]], *, whole: bool = True) -> onnx.ModelProto:
    """The parsed file, prepared for onnxruntime. Raises ModelError (E101, E102).

    shapes: of its inputs, maybe among others. whole: as `read_model`. Model-local functions are replaced by their
    bodies, whose tensors a program may show.
    """
    model = plain(read_model(path, whole=whole))
    automatic = [node for node in model.graph.node if is_automatic(node)]
    if automatic:
        known = {each.name: shapes[each.name] for each in model.graph.input if each.name in shapes}
        try:
            explicit = import_nodes(read_model(path), path.parent, known).producers
        except NpucError:  # an input is dynamic: keep onnxruntime's own padding
            return model
        for node in automatic:
            if node.output[0] in explicit:
                del node.attribute[:]
                node.attribute.extend(explicit[node.output[0]].proto.attribute)
    return model


def bound_model(model: Path, program: Program) -> onnx.ModelProto:
    """The model file with the inputs that the program has, prepared for onnxruntime. Raises as `model_of`."""
    return with_bound(model_of(model, static_shapes(program)), program.bound)


def static_shapes(program: Program) -> dict[str, tuple[int, ...]]:
    """The shapes of a program's inputs, without those that vary."""
    return {port.name: port.shape for port in program.inputs if min(port.shape, default=0) > 0}


def has_automatic_padding(path: Path) -> bool:
    """Whether a file may contain automatic padding instead of explicit pads."""
    return may_contain(path, b"SAME_")
