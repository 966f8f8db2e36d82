"""A model whose file is fixed to one sample, for several at once: its inputs, and the shapes that repeat that 1.

Whether every node keeps the samples apart is seen under onnxruntime: on random samples, all floats that the
changed model computes must be those of the file, sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from npuc.errors import ModelError
from npuc.images.description import Description
from npuc.ir import Array
from npuc.onnx_files.subgraphs import tensor_names
from npuc.reference import values_of, with_outputs
from npuc.regions.witnesses import foreign_session
from npuc.text.escaping import Names

SHAPES: Mapping[str, int] = {"Reshape": 1, "Resize": 3}
"""Operators with a shape that begins with the batch, and its place among their inputs."""
NEAR = 1e-3
"""How far rounding may move a float, relative to the largest of its tensor: kernels may depend on the batch."""


def rebatch(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], images: Sequence[Description], folder: Path
) -> onnx.ModelProto:
    """The model with the batch that shapes give its inputs; the same where none asks for more than the file's 1.

    images: what frames become. The model is modified. Raises ModelError (E109), which names the first node that
    does not keep samples apart.
    """
    shapes = {**shapes, **{each.input: each.shape for each in images}}
    batch = _find_batch(model.graph, shapes)
    if batch == 1:
        return model
    before = onnx.ModelProto()
    before.CopyFrom(model)
    for each in _inputs(model.graph):
        each.type.tensor_type.shape.dim[0].dim_value = batch
    _widen_shapes(model.graph, batch)
    del model.graph.value_info[:]
    found = _expect_apart(before, model, batch, folder)
    for each in model.graph.output:
        if each.type.tensor_type.shape.dim and each.name in found:
            each.type.tensor_type.shape.dim[0].dim_value = found[each.name].shape[0]
    return model


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    constants = {each.name for each in graph.initializer}
    return [each for each in graph.input if each.name not in constants]


def _find_batch(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]]) -> int:
    """The batch in the place of a fixed 1, the same for all inputs; 1 if that is not what the shapes ask for."""
    batches: set[int] = set()
    for each in _inputs(graph):
        dims = [dim.dim_value or -1 for dim in each.type.tensor_type.shape.dim]
        given = [*shapes.get(each.name, dims)]
        fits = len(given) == len(dims) and all(
            b in (a, -1) or a == -1 for a, b in zip(given[1:], dims[1:], strict=True)
        )
        batches.add(given[0] if dims[:1] == [1] and fits and given else 0)
    return max(batches) if len(batches) == 1 and max(batches) > 1 else 1


def _widen_shapes(graph: onnx.GraphProto, batch: int) -> None:
    """Gives constant shapes of data that begin with 1 the batch; those of constants stay."""
    names = Names(tensor_names(graph))
    values = {each.name: each for each in graph.initializer}
    values |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    fixed = {*values}
    for node in graph.node:
        if all(name in fixed for name in node.input if name):
            fixed.update(node.output)
            continue
        place = SHAPES.get(node.op_type, len(node.input))
        shape = values.get(node.input[place]) if place < len(node.input) else None
        numbers = numpy_helper.to_array(shape).copy() if shape is not None else np.zeros(0)
        if node.input[0] not in fixed and numbers.size and numbers[0] == 1:
            numbers[0] = batch
            node.input[place] = names.new(f"{node.input[place]}/batch")
            graph.initializer.append(numpy_helper.from_array(numbers, node.input[place]))


def _expect_apart(before: onnx.ModelProto, after: onnx.ModelProto, batch: int, folder: Path) -> dict[str, Array]:
    """The tensors of the changed model on random samples. Raises ModelError (E109) where it mixes samples."""
    random = np.random.default_rng(0)
    feeds: list[dict[str, Array]] = [
        {each.name: _values(each, random) for each in _inputs(before.graph)} for _ in range(batch)
    ]
    together = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    names = [name for node in before.graph.node for name in node.output if name]
    limit = f"nodes that keep {batch} samples apart"
    try:
        runs = [_run(model, names, folder) for model in (before, after)]
        single = [values_of(runs[0], names, feed) for feed in feeds]
        found = values_of(runs[1], names, together)
    except ModelError as error:
        (problem,) = error.problems
        if problem.code != "E105":  # a limit of memory or time
            raise
        reason = f"it runs one sample at a time, and not {batch}: {problem.reason[-200:]}"
        raise ModelError("E109", reason, limit=limit, remedy="export it with a batch that is free") from None
    for node in before.graph.node:
        for name in filter(None, node.output):
            if not _is_separate([each[name] for each in single], found[name]):
                reason = f"the model is fixed to one sample, and this node does not keep {batch} apart"
                remedy = "export it with a batch that is free, or run one sample at a time"
                raise ModelError(
                    "E109",
                    reason,
                    node=node.name or None,
                    op=node.op_type,
                    tensor=name,
                    limit=limit,
                    remedy=remedy,
                )
    return found


def _run(model: onnx.ModelProto, names: Sequence[str], folder: Path) -> Any:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return foreign_session(with_outputs(made, names), folder, few_runs=True)


def _values(port: onnx.ValueInfoProto, random: np.random.Generator) -> Array:
    kind = port.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    shape = [dim.dim_value or 1 for dim in kind.shape.dim]
    return (random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 2, shape)).astype(dtype)


def _is_separate(single: Sequence[Any], found: Any) -> bool:
    """Whether a float tensor is that of the samples one by one, or does not depend on them; others are left."""
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
        return True
    together = np.concatenate(single) if single[0].ndim else single[0]
    room = NEAR * float(np.abs(together[np.isfinite(together)]).max(initial=0))
    every = all(np.array_equal(each, single[0], equal_nan=True) for each in single)
    wanted = [together, *([single[0]] if every else [])]
    return any(
        w.shape == found.shape and np.allclose(found, w, rtol=NEAR, atol=room, equal_nan=True) for w in wanted
    )
