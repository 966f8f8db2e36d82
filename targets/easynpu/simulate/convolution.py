"""onnxruntime's convolutions in the place of the PE array's: from int8 words to requantised words or to sums.

Maps come and go as the DTCMs hold them, channels last. A convolution over single pixels is a matrix product there;
any other goes through planes, which is how onnxruntime computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npuc.ir import Array
from npuc.reference import session
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.timing import is_dense, kernel_extent

Step = tuple[str, tuple[str, ...], Mapping[str, Any]]
"""An ONNX operator on the result before it: its name, constants and attributes."""


def padding(layer: Layer) -> tuple[int, int, int, int]:
    """Rows and columns of padding: top, left as the word has them, bottom and right as Ho and Wo imply."""
    bottom = (layer.Ho - 1) * layer.Sh + kernel_extent(layer.Hk, layer.Dh) - layer.Ph - layer.Hi
    right = (layer.Wo - 1) * layer.Sw + kernel_extent(layer.Wk, layer.Dw) - layer.Pw - layer.Wi
    return layer.Ph, layer.Pw, bottom, right


def reached(layer: Layer) -> tuple[int, int]:
    """Rows and columns of the map that windows reach; 0 where all of them lie in the padding."""
    _, _, bottom, right = padding(layer)
    return max(layer.Hi + min(bottom, 0), 0), max(layer.Wi + min(right, 0), 0)


def convolution(layer: Layer, w: Array, bias: Array | None, highest: int | None, *, few_runs: bool = False) -> Any:
    """A session with x (N, Hi, Wi, Ci) int8, the rows and columns that windows reach, and y (N, Ho, Wo, Co).

    w: (Co, Ci or 1, Hk, Wk) float32; bias: (Co,) float32. y is uint8, saturated at 0 and highest and rounded down,
    or float32 sums where highest is None.
    """
    from onnx import TensorProto

    constants = {"w": w} if bias is None else {"w": w, "b": bias}
    given = tuple(constants)
    to_float: Step = ("Cast", (), {"to": TensorProto.FLOAT})
    saturation: list[Step] = []
    if highest is not None:
        constants |= {"low": np.float32(0), "high": np.float32(highest)}
        saturation = [("Clip", ("low", "high"), {}), ("Cast", (), {"to": TensorProto.UINT8})]
    if _is_product(layer):
        constants |= {"w": w[:, :, 0, 0], "rows": np.array([-1, layer.Ci])}
        constants["map"] = np.array([-1, layer.Ho, layer.Wo, layer.Co])
        product: Step = ("Gemm", given, {"transB": 1})
        steps = [to_float, ("Reshape", ("rows",), {}), product, *saturation, ("Reshape", ("map",), {})]
    else:
        planes: Step = ("Transpose", (), {"perm": [0, 3, 1, 2]})
        steps = [planes, to_float, ("Conv", given, _window(layer)), *saturation]
        steps.append(("Transpose", (), {"perm": [0, 2, 3, 1]}))
    return _session(layer, steps, constants, TensorProto.UINT8 if saturation else TensorProto.FLOAT, few_runs)


def _is_product(layer: Layer) -> bool:
    """Whether an output is made of all channels of one pixel, and every pixel is used."""
    return is_dense(layer) and (layer.Hk, layer.Wk, layer.Sh, layer.Sw) == (1, 1, 1, 1) and not any(padding(layer))


def _window(layer: Layer) -> dict[str, Any]:
    """The attributes of the ONNX Conv."""
    top, left, bottom, right = padding(layer)
    return {
        "strides": [layer.Sh, layer.Sw],
        "pads": [top, left, max(bottom, 0), max(right, 0)],
        "dilations": [layer.Dh + 1, layer.Dw + 1],
        "group": 1 if is_dense(layer) else layer.Co,
    }


def _session(
    layer: Layer, steps: Sequence[Step], constants: Mapping[str, Any], element: int, few_runs: bool
) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    names = ["x", *(f"t{position}" for position in range(1, len(steps))), "y"]
    nodes = [
        helper.make_node(op, [before, *given], [after], **attrs)
        for (op, given, attrs), before, after in zip(steps, names, names[1:], strict=False)
    ]
    height, width = reached(layer)
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.INT8, ["N", height, width, layer.Ci])],
        [helper.make_tensor_value_info("y", element, ["N", layer.Ho, layer.Wo, layer.Co])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return session(model, few_runs=few_runs)
