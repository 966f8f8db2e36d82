"""Reference semantics of a graph: numpy runs it node by node, in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npuc.errors import DataError
from npuc.ir import Array, Graph, Node, type_of
from npuc.ops import OPS, Operators


def evaluate(node: Node, inputs: Sequence[Array], operators: Operators = OPS) -> tuple[Array, ...]:
    """The outputs of one node; infinities and NaN raise no warnings, as in onnxruntime."""
    with np.errstate(all="ignore"):
        return operators[node.op].compute(node, inputs)


def run(graph: Graph, feeds: Mapping[str, Array], wanted: Sequence[str] | None = None) -> dict[str, Array]:
    """The values of the wanted tensors (default: the graph's outputs), in that order.

    feeds: a value of exactly the declared shape and type for every graph input.
    Raises DataError (E401, E402) for feeds that do not fit. A value is dropped after its last reader.
    """
    names = tuple(graph.outputs if wanted is None else wanted)
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        values[name] = _feed(graph, name, feeds)
    last = {tensor: index for index, node in enumerate(graph.nodes) for tensor in node.inputs}
    absent, kept = np.empty(0, np.float32), set(names)
    for index, node in enumerate(graph.nodes):
        found = evaluate(node, [values[tensor] if tensor else absent for tensor in node.inputs], graph.operators)
        values.update(zip(node.outputs, found, strict=True))
        for tensor in set(node.inputs):
            if tensor and last[tensor] == index and tensor not in kept:
                del values[tensor]
    return {name: values[name] for name in names}


def _feed(graph: Graph, name: str, feeds: Mapping[str, Array]) -> Array:
    """The value of one graph input, checked against its type."""
    if name not in feeds:
        raise DataError("E401", "no value is given for this input", tensor=name)
    value = np.asarray(feeds[name])
    if type_of(value) != graph.tensors[name]:
        reason = f"the value is {type_of(value)}, the input {graph.tensors[name]}"
        raise DataError("E402", reason, tensor=name)
    return value
