"""Automatic padding and output shapes of convolutions, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.frontend import import_model
from npuc.interpreter import run
from npuc.ir import Array
from tests.onnx_models import network, node

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]


def compare(op: str, w: tuple[int, ...], attrs: dict[str, Any], reference: Reference) -> None:
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 9, 8), w))
    model = network([node(op, "x w", "y", **attrs)], x.shape, {"w": weight}, opset=13)
    found = run(import_model(model), {"x": x})["y"]
    np.testing.assert_allclose(found, reference(model, {"x": x})["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("more", [{}, {"strides": [2, 3]}, {"kernel_shape": [2, 3]}])
def test_conv_pads_automatically(auto_pad: str, more: dict[str, Any], onnxruntime_values: Reference) -> None:
    compare("Conv", (3, 4, 2, 3), {"auto_pad": auto_pad, **more}, onnxruntime_values)


@pytest.mark.parametrize(
    "attrs",
    [
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
        {"auto_pad": "VALID", "strides": [2, 3]},
        {"output_shape": [17, 16], "strides": [2, 2]},
        {"output_shape": [18, 17], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"output_shape": [19, 18], "strides": [2, 2], "output_padding": [1, 1]},
        {"output_shape": [17, 16], "strides": [2, 2], "kernel_shape": [4, 4]},
    ],
)
def test_conv_transpose_cuts_to_its_output_shape(attrs: dict[str, Any], onnxruntime_values: Reference) -> None:
    compare("ConvTranspose", (4, 3, 4, 4), attrs, onnxruntime_values)
