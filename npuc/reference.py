"""onnxruntime, which computes every expected value: sessions on one thread, with little memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.errors import ModelError
from npuc.ir import Array, Graph

if TYPE_CHECKING:
    import onnx

HEAVY = 1 << 20
"""Bytes of a constant that is better not copied."""
LARGE = 1 << 27
"""Bytes of float32 weights that onnxruntime shall not rearrange, as that takes several copies of them."""
NO_WEIGHTS: Mapping[str, Array] = {}


FAULTY_OPTIMIZERS = ("ConvAddActivationFusion",)
"""Removes tensors that the model gives as outputs."""


def session(model: onnx.ModelProto | bytes, weights: Mapping[str, Array] = NO_WEIGHTS) -> Any:
    """An onnxruntime.InferenceSession of the model on one CPU thread.

    weights: constants that the model names as `outside`; they are not copied. Raises ModelError (E105) where
    onnxruntime refuses the model.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    # QuantizeLinear and DequantizeLinear as they are: else onnxruntime quantises float weights between them by
    # itself, and its int8 kernels saturate where the processor has no instruction for them
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if weights:
        values = [ort.OrtValue.ortvalue_from_numpy(value) for value in weights.values()]
        options.add_external_initializers(list(weights), values)
        if sum(value.nbytes for value in weights.values()) > LARGE:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    serialized = model if isinstance(model, bytes) else model.SerializeToString()
    int8_weights = len(serialized) > LARGE // np.dtype(np.float32).itemsize  # which are cast when they are used
    without = (*FAULTY_OPTIMIZERS, "ConstantFolding") if int8_weights else FAULTY_OPTIMIZERS
    try:
        return ort.InferenceSession(
            serialized, options, providers=["CPUExecutionProvider"], disabled_optimizers=without
        )
    except Exception as error:  # onnxruntime raises many unrelated types
        raise ModelError("E105", f"onnxruntime refuses the model: {error}") from None


def graph_session(graph: Graph, outputs: Sequence[str]) -> Any:
    """A session of a float graph that gives these of its tensors; it shares the graph's constants."""
    from npuc.export_onnx import to_onnx

    weights: dict[str, Array] = {}
    return session(to_onnx(graph, outputs, weights), weights)


def without_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """The model and its heavy float32 constants apart, for `session`; the model that is given loses them."""
    import onnx

    weights: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.data_type == tensor.FLOAT and tensor.ByteSize() > HEAVY and tensor.HasField("raw_data"):
            weights[tensor.name] = onnx.numpy_helper.to_array(tensor)
            outside(tensor)
    return onnx.ModelProto.FromString(model.SerializeToString()), weights


def outside(tensor: onnx.TensorProto) -> None:
    """Leaves name, type and shape of a constant, whose value `session` gets beside the model."""
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    tensor.external_data.add(key="location", value="memory")


def present(model: Any, names: Sequence[str]) -> list[str]:
    """Those of the names that a node of the ONNX model writes."""
    written = {name for node in model.graph.node for name in node.output}
    return [name for name in names if name in written]


def with_outputs(model: Any, names: Sequence[str]) -> Any:
    """The model with exactly these outputs; onnxruntime infers their types."""
    from onnx import ValueInfoProto

    known = {each.name: each for each in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(known.get(name, ValueInfoProto(name=name)) for name in names)
    return model
