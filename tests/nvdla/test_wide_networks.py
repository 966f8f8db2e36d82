"""Networks in 16 bits on nv_full: bit for bit the integer network in int16, near onnxruntime's float32 in fp16.

fp16 has 11 significant bits, a rounding of 78 dB; the bounds leave room for its sums over some layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.ir import Array
from npuc.models import MODELS
from tests.nvdla.networks import expect_close, expect_exact, verified
from tests.onnx_models import network, node, weights

SHAPE = (1, 20, 9, 11)
EXPECT = {"int16": expect_exact, "fp16": expect_close}

pytestmark = pytest.mark.parametrize("precision", EXPECT)


def _expect(model: onnx.ModelProto, folder: Path, precision: str, least_db: float, *hosted: str) -> None:
    report = verified(model, folder, "nvdla-full", samples=1, precision=precision)
    EXPECT[precision](report, least_db)
    assert [step["op"] for step in report["compiled"]["host_steps"]] == [*hosted]


DEEP = {"mobilenet_v1_025": 54.0}
"""27 layers round in turn; weights are rounded by samples whose last digits differ by processor: 57 to 61 dB."""


@pytest.mark.parametrize("model", ["digits", "lenet", "resnet8", "ds_cnn", "residual_awkward", *DEEP])
def test_a_network_is_finer_than_int8(model: str, precision: str, tmp_path: Path) -> None:
    report = verified(MODELS[model](), tmp_path, "nvdla-full", samples=1, precision=precision)
    EXPECT[precision](report, 55.0 if precision == "int16" else DEEP.get(model, 60.0))


def _conv(w: Array, **attrs: Any) -> onnx.ModelProto:
    bias = weights(len(w), 1)[:, 0]
    return network([node("Conv", "x w b", "y", **attrs)], SHAPE, {"w": w, "b": bias})


CONVOLUTIONS: dict[str, onnx.ModelProto] = {
    "dense": _conv(weights(33, 20, 3, 3), pads=[1, 1, 1, 1]),
    "strided": _conv(weights(16, 20, 3, 2), strides=[2, 3], pads=[0, 1, 1, 0]),
    "dilated": _conv(weights(7, 20, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3]),
    "grouped": _conv(weights(30, 4, 3, 3), group=5, pads=[1, 1, 1, 1]),
    "depthwise": _conv(weights(20, 1, 5, 5), group=20, pads=[2, 2, 2, 2]),
    "fully connected": _conv(weights(40, 20, 9, 11)),
    "transposed": network(
        [node("ConvTranspose", "x w", "y", strides=[2, 2], pads=[1, 1, 0, 0])], SHAPE, {"w": weights(20, 9, 3, 3)}
    ),
    "of equal signs": _conv(np.full((16, 20, 9, 11), 0.03, np.float32)),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_every_kind_of_convolution(kind: str, precision: str, tmp_path: Path) -> None:
    _expect(CONVOLUTIONS[kind], tmp_path, precision, 65.0)


UNARY: dict[str, tuple[str, dict[str, Any], dict[str, Array]]] = {
    "Relu": ("x", {}, {}), "LeakyRelu": ("x", {"alpha": 0.3}, {}),
    "PRelu": ("x slopes", {}, {"slopes": weights(20, 1, 1)}),
    "Clip": ("x low high", {}, {"low": np.float32(-0.4), "high": np.float32(0.9)}), "Abs": ("x", {}, {}),
    "Neg": ("x", {}, {}), "HardSigmoid": ("x", {"alpha": 0.3, "beta": 0.4}, {}), "HardSwish": ("x", {}, {}),
    "AveragePool": ("x", {"kernel_shape": [3, 3], "strides": [2, 2]}, {}),
    "MaxPool": ("x", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, {}),
    "GlobalAveragePool": ("x", {}, {}), "GlobalMaxPool": ("x", {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_an_operator_on_a_map(op: str, precision: str, tmp_path: Path) -> None:
    """Sums of averages in fp16 are rounded to fp17 one by one."""
    inputs, attrs, constants = UNARY[op]
    least_db = 55.0 if precision == "int16" else 60.0 if "Average" in op else 65.0
    _expect(network([node(op, inputs, "y", **attrs)], SHAPE, constants), tmp_path, precision, least_db)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min"])
@pytest.mark.parametrize("other", ["map", "per channel", "constant map"])
def test_two_operands(op: str, other: str, precision: str, tmp_path: Path) -> None:
    shape = (*SHAPE[:2], 3, 5) if other == "constant map" else SHAPE  # a kernel for every element
    constants = {"w": weights(20, 20, 1, 1), "v": weights(20, 20, 1, 1)[::-1].copy()}
    constants |= {"c": weights(20, 1, 1) if other == "per channel" else weights(*shape[1:])}
    nodes = [node("Conv", "x w", "a"), node("Conv", "x v", "b"), node(op, "a b" if other == "map" else "a c", "y")]
    report = verified(network(nodes, shape, constants), tmp_path, "nvdla-full", samples=1, precision=precision)
    EXPECT[precision](report, 60.0 if precision == "int16" else 64.0)


def test_concat_and_softmax(precision: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x u", "a"), node("Conv", "x v", "b"), node("Concat", "a b", "c", axis=1),
        node("Conv", "c w", "d"), node("Softmax", "d", "y", axis=1),
    ]  # fmt: skip
    constants = {"u": weights(5, 20, 1, 1), "v": weights(20, 20, 1, 1), "w": weights(9, 25, 1, 1)}
    _expect(network(nodes, SHAPE, constants), tmp_path, precision, 60.0, "Softmax")
