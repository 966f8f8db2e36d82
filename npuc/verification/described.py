"""graph.json of an artefact: the layers and tensors that reference.onnx computes, checked."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any

from npuc.errors import ArtefactError, ModelError
from npuc.frontend.reading import check_names
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.onnx_files.external_weights import light
from npuc.program import Program
from npuc.storage.pieces import Content
from npuc.storage.records import read
from npuc.target import FLOATING

if TYPE_CHECKING:
    import onnx

LIMITS = ("E110", "E111")
"""Errors of the memory and time limits."""


@frozen
class _Tensor:
    """A tensor."""

    float: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int = 0
    factors: tuple[float, ...] = ()


@frozen
class _Scaled(_Tensor):
    """An integer tensor."""

    scale: float = field(kw_only=True)


@frozen
class DescribedLayer:
    """A layer, and the tensor that it computes."""

    op: str
    inputs: tuple[str, ...]
    tensor: str
    nodes: tuple[str, ...]


@frozen
class _Rewrite:
    """A rewrite of nodes by a pass."""

    nodes: tuple[str, ...]


@frozen
class _Floats:
    """graph.json of a floating-point program."""

    tensors: Mapping[str, _Tensor]
    layers: tuple[DescribedLayer, ...]
    rewrites: tuple[_Rewrite, ...] = ()


@frozen
class _Integers(_Floats):
    """graph.json of an integer program."""

    tensors: Mapping[str, _Scaled]


def damaged(name: str, reason: str) -> ArtefactError:
    """The error for evidence that npuc did not write."""
    return ArtefactError("E502", f"{name} is damaged: {reason}")


def described(program: Program) -> Mapping[str, Any]:
    """graph.json of a program with its evidence, checked. Raises ArtefactError (E502) if npuc did not write it."""
    try:
        found = json.loads(program.evidence["graph.json"])
    except (ValueError, RecursionError):
        raise damaged("graph.json", "it is not JSON") from None
    floating = program.precision in FLOATING
    checked = read(_Floats if floating else _Integers, found, "graph", "graph.json")
    for layer in checked.layers:
        if not floating and layer.tensor not in checked.tensors:
            raise damaged("graph.json", f"it lacks the tensor '{layer.tensor}'")
    for name, tensor in checked.tensors.items():
        if tensor.factors and len(tensor.factors) != (*tensor.shape, 0, 0)[1]:
            raise damaged("graph.json", f"'{name}' has {len(tensor.factors)} factors")
    return found


def network(content: Content) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """reference.onnx and, for a program just compiled, the heavy constants that it refers to as external.

    Raises ArtefactError (E502) if npuc did not write it.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        data, weights = light(content)
        found = onnx.ModelProto.FromString(data)
        check_names(found.graph)
    except (DecodeError, ModelError):
        raise damaged("reference.onnx", "it is not an ONNX model") from None
    if found.functions:
        raise damaged("reference.onnx", "it has functions of its own")
    return found, weights


@contextmanager
def foreign_evidence() -> Generator[None]:
    """A context that opens or runs reference.onnx: errors of onnxruntime become E502, exceeded limits E509."""
    try:
        yield
    except ModelError as error:
        (problem, *_) = error.problems
        if problem.code not in LIMITS:
            raise damaged("reference.onnx", problem.reason) from None
        reason = f"reference.onnx: {problem.reason}"
        raise ArtefactError("E509", reason, limit=problem.limit, remedy=problem.remedy) from None
