"""onnxruntime, which computes every expected value: sessions on one thread, with little memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from npuc.errors import ModelError

if TYPE_CHECKING:
    import onnx


FAULTY_OPTIMIZERS = ("ConvAddActivationFusion",)
"""Removes tensors that the model gives as outputs."""


def session(model: onnx.ModelProto | bytes, *, optimise: bool = True) -> Any:
    """An onnxruntime.InferenceSession of the model on one CPU thread.

    Raises ModelError (E105) where onnxruntime refuses the model.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    # QuantizeLinear and DequantizeLinear as they are: else onnxruntime quantises float weights between them by
    # itself, and its int8 kernels saturate where the processor has no instruction for them
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    serialized = model if isinstance(model, bytes) else model.SerializeToString()
    try:
        return ort.InferenceSession(
            serialized, options, providers=["CPUExecutionProvider"], disabled_optimizers=FAULTY_OPTIMIZERS
        )
    except Exception as error:  # onnxruntime raises many unrelated types
        raise ModelError("E105", f"onnxruntime refuses the model: {error}") from None


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
