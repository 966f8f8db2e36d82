"""What npuc's model computes, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from npuc.ir import Array
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div, okk_compact_stride, to_2ic_mode
from npuc.targets.bm1684.machine.parameters import Machine
from tests.bm1684 import chips
from tests.bm1684.kernels import need_compiler, source
from tests.bm1684.random_calls import dim4
from tests.conftest import Reference
from tests.onnx_models import network, node

MACHINE = Machine()
BASE = 62 * MACHINE.local_bytes
"""NPU 62: three channels reach the next block row."""
BANK = MACHINE.bank_bytes


def _expected(values: Reference, op: str, operands: list[Array], attrs: Mapping[str, Any]) -> Array:
    names = [f"x{at}" for at in range(len(operands))]
    feeds = dict(zip(names, operands, strict=True))
    model = network([node(op, " ".join(names), "y", **attrs)], {name: x.shape for name, x in feeds.items()})
    return values(model, feeds)["y"]


def _computed(operands: list[tuple[int, Array, Dim4 | None]], call: str, shape: tuple[int, ...]) -> Array:
    """The result at BASE of a call on tensors at their banks, with their strides."""
    need_compiler()
    offsets = np.cumsum([0, *(each.nbytes for _, each, _ in operands)]).tolist()
    loads = [
        f"okk_gdma_32bit_cpy_S2L({BASE + bank * BANK}u, SYSTEM + {at},"
        f" {dim4(Dim4(*each.shape))}, {dim4(stride)}, NULL);"
        for at, (bank, each, stride) in zip(offsets, operands, strict=False)
    ]
    store = f"okk_gdma_32bit_cpy_L2S(SYSTEM + {offsets[-1]}, {BASE}u, {dim4(Dim4(*shape))}, NULL, NULL);"
    sources = source({"k": "\n".join([*loads, call, store])})
    result = np.zeros(int(np.prod(shape)), np.float32)
    memory = np.concatenate([*(each.ravel() for _, each, _ in operands), result]).view(np.uint8)
    run = chips.simulate(sources, "k", b"", memory, MACHINE)
    return run.memory[offsets[-1] :].view(np.float32).reshape(shape)


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _compact(shape: tuple[int, ...]) -> Dim4:
    return okk_compact_stride(62, Dim4(*shape), MACHINE)


@pytest.mark.parametrize(
    ("IC", "OC", "kernel", "stride", "dilation", "pads"),
    [(3, 5, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), (4, 70, (2, 5), (1, 3), (2, 1), (0, 2, 1, 0)),
     (65, 3, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))],
)  # fmt: skip
def test_convolution_with_bias(
    onnxruntime_values: Reference,
    IC: int,
    OC: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: tuple[int, int, int, int],
) -> None:
    x, w, b = _random(2, IC, 13, 12), _random(OC, IC, *kernel), _random(OC)
    attrs = {"strides": stride, "dilations": dilation, "pads": pads}
    expected = _expected(onnxruntime_values, "Conv", [x, w, b], attrs)
    pairs = to_2ic_mode(w.transpose(1, 0, 2, 3))
    stored = pairs.reshape(ceil_div(IC, 2), OC, kernel[0], 2 * kernel[1])
    top, left, bottom, right = pads
    call = (
        f"okk_bdc_conv2d({BASE}u, {BASE + 2 * BANK}u, {BASE + 4 * BANK}u, {BASE + 7 * BANK}u,"
        f" {dim4(Dim4(*x.shape))}, {OC}, {kernel[0]}, {kernel[1]}, NULL,"
        f" {dim4(_compact((1, OC, *kernel)))}, true, false,"
        f" PAD({top}, {bottom}, {left}, {right}), D2({stride[0]}, {stride[1]}), D2({dilation[0]}, {dilation[1]}));"
    )
    bias = b.reshape(1, OC, 1, 1)
    operands = [(2, x, None), (4, stored, _compact(stored.shape)), (7, bias, _compact(bias.shape))]
    found = _computed(operands, call, expected.shape)
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max() + 1e-6


def test_depthwise_convolution(onnxruntime_values: Reference) -> None:
    x, w, b = _random(1, 5, 9, 9), _random(5, 1, 3, 3), _random(5)
    expected = _expected(
        onnxruntime_values, "Conv", [x, w, b], {"group": 5, "strides": (2, 1), "pads": (1, 0, 1, 1)}
    )
    call = (
        f"okk_bdc_depthwise2d({BASE}u, {BASE + 2 * BANK}u, {BASE + 4 * BANK}u, {BASE + 5 * BANK}u,"
        " D4(1, 5, 9, 9), 3, 3, true, PAD(1, 1, 0, 1), D2(2, 1), NULL);"
    )
    kernel, bias = w.reshape(1, 5, 3, 3), b.reshape(1, 5, 1, 1)
    operands = [(2, x, None), (4, kernel, _compact(kernel.shape)), (5, bias, _compact(bias.shape))]
    assert np.allclose(_computed(operands, call, expected.shape), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "call", "attrs"),
    [("MaxPool", "max_pool2d", {}), ("AveragePool", "avg_pool2d", {"count_include_pad": 1})],
)
def test_pooling(onnxruntime_values: Reference, op: str, call: str, attrs: Mapping[str, Any]) -> None:
    x = _random(1, 4, 11, 10)
    window = {"kernel_shape": (3, 2), "strides": (2, 3), "pads": (1, 1, 0, 0), **attrs}
    expected = _expected(onnxruntime_values, op, [x], window)
    statement = f"okk_bdc_{call}({BASE}u, {BASE + 2 * BANK}u, D4(1, 4, 11, 10), 3, 2, PAD(1, 0, 1, 0), D2(2, 3));"
    assert np.allclose(_computed([(2, x, None)], statement, expected.shape), expected, rtol=1e-6, atol=1e-6)


def test_a_product_of_matrices_with_partial_last_channels(onnxruntime_values: Reference) -> None:
    need_compiler()
    a, b, c = _random(3, 40), _random(40, 100), _random(1, 100)
    expected = _expected(onnxruntime_values, "Gemm", [a, b, c], {})
    matrices = ((a, 65536, 15), (b, 131072, 9), (c, 393216, 9))
    offsets = np.cumsum([0, a.nbytes, b.nbytes, c.nbytes]).tolist()
    loads = [
        f"okk_gdma_32bit_matrix_S2L({address}, SYSTEM + {at}, {len(each)}, {each.shape[1]}, {W}, {each.shape[1]});"
        for at, (each, address, W) in zip(offsets, matrices, strict=False)
    ]
    body = "\n".join(
        [
            *loads,
            "okk_bdc_matmul(0, 65536, 131072, 393216, 3, 40, 100, 15, 9, true, false);",
            f"okk_gdma_32bit_matrix_L2S(SYSTEM + {offsets[-1]}, 0, 3, 100, 9, 100);",
        ]
    )
    memory = np.concatenate([a.ravel(), b.ravel(), c.ravel(), np.zeros(300, np.float32)]).view(np.uint8)
    found = chips.simulate(source({"k": body}), "k", b"", memory, MACHINE).memory[offsets[-1] :]
    assert np.allclose(found.view(np.float32).reshape(3, 100), expected, rtol=1e-5, atol=1e-5)
