"""The onnx package's test cases of single nodes with constant operands; the backend suite computes all of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from npuc.errors import UnsupportedOperator
from npuc.onnx_backend import SOME, Prepared
from npuc.onnx_suite import tolerance
from npuc.target import Options
from tests.compiled import causes

OPERATORS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "InstanceNormalization", "LRN",
    "Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Softmax",
    "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMean", "Resize",
    "Add", "Sub", "Mul", "Div", "Concat", "Split", "Slice", "Pad", "Reshape", "Squeeze", "Unsqueeze", "Flatten",
    "Transpose", "Expand", "DepthToSpace", "SpaceToDepth", "Dropout", "Identity",
)  # fmt: skip
"""The operators of convolutional networks."""
FLOAT, OTHERS = TensorProto.FLOAT, {TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64}


def cases() -> Iterator[Any]:
    """Cases of one node with a float32 input and float32 outputs; operators spelt by others are left out."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        if case.model is None or len(case.model.graph.node) != 1 or "_expanded" in case.name:
            continue
        inputs, outputs = ([each.type.tensor_type.elem_type for each in ports]
                           for ports in (case.model.graph.input, case.model.graph.output))  # fmt: skip
        (node,) = case.model.graph.node
        floats = inputs[:1] == [FLOAT] and {*outputs} == {FLOAT} and {*inputs} <= OTHERS
        if floats and not node.domain and node.op_type in OPERATORS:
            yield case


def result(model: onnx.ModelProto, inputs: list[Any], wanted: list[Any]) -> str:
    """How a case ends: refused, exact enough, or wrong."""
    prepared = Prepared(model, "easynpu", Options(machine="large"))
    prepared.way = 1, SOME  # all inputs but the first are constants
    try:
        compiled, found = prepared.compile_for(prepared.feeds(inputs)), prepared.run(inputs)
    except UnsupportedOperator:
        return "refused"
    if any(code.startswith("E") for code in causes(compiled.program)):
        return "refused"
    for port, right, value in zip(compiled.program.outputs, wanted, found, strict=True):
        room = max(tolerance(compiled.program, model, port.name, np.asarray(right)), 1e-6)
        if not np.allclose(value, right, rtol=1e-3, atol=room):
            return "wrong"
    return "right"


def test_every_third_case_runs_within_three_steps_or_is_refused() -> None:
    ends = {case.name: result(case.model, *map(list, case.data_sets[0])) for case in list(cases())[::3]}
    assert [name for name, end in ends.items() if end == "wrong"] == []
    assert len(ends) > 80 and sum(end == "right" for end in ends.values()) > 0.9 * len(ends)
