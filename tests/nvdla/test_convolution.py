"""Convolutions on the model: sums as numpy makes them, on every configuration and in every precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.nvdla import model
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine
from npuc.targets.nvdla.model import cacc
from tests.nvdla.programs import OPERAND, RESULT, SOURCE, WEIGHTS, Convolution, Fields, memory


def sums(x: Array, w: Array) -> Array:
    """The convolution (K, Ho, Wo) of (C, H, W) with (K, C, R, S), written out."""
    kernels, _, R, S = w.shape
    out = np.zeros((kernels, x.shape[1] - R + 1, x.shape[2] - S + 1), x.dtype)
    for k in range(kernels):
        for y in range(out.shape[1]):
            for column in range(out.shape[2]):
                out[k, y, column] = (x[:, y : y + R, column : column + S] * w[k]).sum()
    return out


def drawn(layer: Convolution, most: int, seed: int = 0) -> tuple[Array, Array]:
    """Data and weights of a layer."""
    random = np.random.default_rng(seed)
    K, R, S = layer.kernel
    dtype = "float16" if layer.precision == "fp16" else layer.precision
    x = random.integers(-most, most + 1, layer.shape).astype(dtype)
    return x, random.integers(-most, most + 1, (K, layer.shape[0], R, S)).astype(dtype)


def result(layer: Convolution, x: Array, w: Array) -> Array:
    """What the model gives for a layer."""
    return layer.read(model.run(layer.machine, layer.commands(), memory(layer.contents(x, w))))


LAYERS = [
    (SMALL, (19, 5, 6), (11, 3, 2), "int8"),
    (SMALL, (8, 1, 1), (1, 1, 1), "int8"),
    (LARGE, (70, 4, 5), (40, 2, 3), "int8"),
    (FULL, (70, 4, 5), (40, 2, 3), "int8"),
    (FULL, (70, 4, 5), (20, 2, 3), "int16"),
    (FULL, (70, 4, 5), (20, 2, 3), "fp16"),
]


@pytest.mark.parametrize(("machine", "shape", "kernel", "kind"), LAYERS)
def test_the_sums_are_those_of_the_convolution_written_out(
    machine: Machine, shape: tuple[int, int, int], kernel: tuple[int, int, int], kind: str
) -> None:
    layer = Convolution(machine, shape, kernel, kind)
    x, w = drawn(layer, 3 if kind != "int16" else 9)
    wide: Any = np.float64 if kind == "fp16" else np.int64
    expected = sums(x.astype(wide), w.astype(wide))
    limits = np.finfo(np.float16) if kind == "fp16" else np.iinfo(kind)
    np.testing.assert_array_equal(result(layer, x, w), expected.clip(limits.min, limits.max))


def test_sums_beyond_float32_are_exact() -> None:
    layer = Convolution(FULL, (64, 2, 2), (3, 2, 2), "int16", changed={"CACC.D_CLIP_CFG": {"CLIP_TRUNCATE": 24}})
    x, w = np.full(layer.shape, 32767, np.int16), np.full((3, 64, 2, 2), 32767, np.int16)
    # 256 * 32767^2 = 274861129984 -> / 2^24 = 16383.00002, rounded 16383
    np.testing.assert_array_equal(result(layer, x, w), np.full((3, 1, 1), 16383))


def test_truncation_rounds_half_away_from_zero() -> None:
    layer = Convolution(SMALL, (1, 1, 4), (1, 1, 1), changed={"CACC.D_CLIP_CFG": {"CLIP_TRUNCATE": 1}})
    x = np.array([[[1, -1, 3, -3]]], np.int8)
    assert result(layer, x, np.ones((1, 1, 1, 1), np.int8)).ravel().tolist() == [1, -1, 2, -2]


def test_partial_sums_saturate_with_every_addition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cacc, "PARTIAL_BITS", {1: 8, 2: 48})
    layer = Convolution(SMALL, (1, 3, 1), (1, 3, 1))
    x = np.array([[[100], [100], [-100]]], np.int8)
    # 100, min(200, 127), 27: without saturation in between it would be 100
    assert result(layer, x, np.ones((1, 1, 3, 1), np.int8)).ravel().tolist() == [27]


@pytest.mark.parametrize("kind", ["int8", "int16", "fp16"])
def test_padding_has_the_value_of_the_register(kind: str) -> None:
    value = int(np.array(2, np.float16).view(np.uint16)) if kind == "fp16" else 2
    layer = Convolution(
        FULL, (1, 2, 2), (1, 2, 2), kind,
        changed={
            **{f"{each}.D_ZERO_PADDING": {"PAD_LEFT": 1, "PAD_TOP": 1} for each in ("CDMA", "CSC")},
            **{f"{each}.D_ZERO_PADDING_VALUE": {"PAD_VALUE": value} for each in ("CDMA", "CSC")},
        },
    )  # fmt: skip
    x, w = np.array([[[10, 20], [30, 40]]]), np.ones((1, 1, 2, 2))
    dtype = "float16" if kind == "fp16" else kind
    assert result(layer, x.astype(dtype), w.astype(dtype)).ravel().tolist() == [16]


def test_lanes_behind_the_last_kernel_are_a_sum_of_zero_through_the_converter() -> None:
    layer = Convolution(SMALL, (1, 1, 1), (1, 1, 1), changed={"SDP.D_CVT_OFFSET": {"CVT_OFFSET": 2**32 - 5}})
    after = model.run(
        SMALL,
        layer.commands(),
        memory(layer.contents(np.ones((1, 1, 1), np.int8), np.ones((1, 1, 1, 1), np.int8))),
    )
    assert list(after.read(RESULT, 8)) == [6, 5, 5, 5, 5, 5, 5, 5]


def test_batches_are_convolved_one_by_one() -> None:
    layer = Convolution(
        FULL, (3, 2, 2), (2, 1, 1),
        changed={
            **{f"{each}.D_BATCH_NUMBER": {"BATCHES": 1} for each in ("CDMA", "CSC", "CACC")},
            "CDMA.D_BATCH_STRIDE": {"BATCH_STRIDE": 0x1000 // 32},
            "SDP.D_DST_BATCH_STRIDE": {"DST_BATCH_STRIDE": 0x800 // 32},
            "SDP.D_FEATURE_MODE_CFG": {"BATCH_NUMBER": 1},
        },
    )  # fmt: skip
    (first, w), (second, _) = drawn(layer, 5), drawn(layer, 5, seed=1)
    other = replace(layer, source=SOURCE + 0x1000)
    after = model.run(FULL, layer.commands(), memory({**layer.contents(first, w), **other.contents(second, w)}))
    np.testing.assert_array_equal(layer.read(after), sums(first, w))
    np.testing.assert_array_equal(replace(layer, result=RESULT + 0x800).read(after), sums(second, w))


def test_weights_that_are_kept_serve_the_next_layer() -> None:
    mode = "CDMA.D_MISC_CFG"
    keeps = Convolution(SMALL, (3, 2, 2), (2, 1, 1), changed={mode: {"SKIP_WEIGHT_RLS": 1}})
    reuses = replace(keeps, group=1, source=OPERAND, result=RESULT + 64, changed={mode: {"WEIGHT_REUSE": 1}})
    x, w = drawn(keeps, 5)
    contents = {**keeps.contents(x, w), **reuses.contents(-x, w)}
    nvdla = model.ChipModel(SMALL, memory(contents))
    nvdla.execute(keeps.commands())
    nvdla.memory.write(WEIGHTS, bytes(64))
    nvdla.execute(reuses.commands())
    np.testing.assert_array_equal(reuses.read(nvdla.memory), -sums(x, w))


@pytest.mark.parametrize(("changed", "reason"), [
    ({"CDMA.D_MISC_CFG": {"DATA_REUSE": 1}}, "DATA_REUSE of what no operation has left"),
    ({"CDMA.D_MISC_CFG": {"WEIGHT_REUSE": 1}, **{f"{each}.D_BANK": {"DATA_BANK": 15,
        "WEIGHT_BANK": 7} for each in ("CDMA", "CSC")}}, "reuses what other banks hold"),
])  # fmt: skip
def test_what_the_buffer_does_not_hold_any_more_is_not_reused(changed: Fields, reason: str) -> None:
    keeps = Convolution(SMALL, (3, 2, 2), (2, 1, 1), changed={"CDMA.D_MISC_CFG": {"SKIP_WEIGHT_RLS": 1}})
    reuses = replace(keeps, group=1, source=OPERAND, result=RESULT + 64, changed=changed)
    with pytest.raises(ArtefactError, match=reason):
        model.run(SMALL, [*keeps.commands(), keeps.wait(), *reuses.commands()], memory())


def test_infinity_and_nan_of_fp16_in_the_convolution() -> None:
    layer = Convolution(
        FULL, (1, 1, 4), (1, 1, 1), "fp16", changed={"SDP.D_DATA_FORMAT": {"OUT_PRECISION": "FP16"}}
    )
    x = np.array([[[np.inf, -np.inf, np.nan, 2.0**-24]]], np.float16)
    nvdla = model.ChipModel(FULL, memory(layer.contents(x, np.full((1, 1, 1, 1), 0.5, np.float16))))
    nvdla.execute(layer.commands())
    found = layer.read(nvdla.memory).ravel()
    # infinity is 65536 in DC; a denormal times 1/2 rounds to nearest even, 0; NaN propagates
    assert found[:2].tolist() == [32768.0, -32768.0] and np.isnan(found[2]) and found[3] == 0
    counted = {each: nvdla.registers.get("CDMA", f"D_{each}_INPUT_DATA_NUM", 0) for each in ("NAN", "INF")}
    assert counted == {"NAN": 1, "INF": 2}


def test_nan_is_flushed_to_zero_where_the_register_says_so() -> None:
    layer = Convolution(
        FULL, (2, 1, 1), (1, 1, 1), "fp16", changed={"CDMA.D_NAN_FLUSH_TO_ZERO": {"NAN_TO_ZERO": 1}}
    )
    x = np.array([[[np.nan]], [[3]]], np.float16)
    assert result(layer, x, np.ones((1, 2, 1, 1), np.float16)).ravel().tolist() == [3.0]


def test_results_of_fp16_are_clipped_to_the_largest_number() -> None:
    layer = Convolution(FULL, (1, 1, 2), (1, 1, 1), "fp16")
    x = np.array([[[60000, -60000]]], np.float16)
    assert result(layer, x, np.full((1, 1, 1, 1), 2, np.float16)).ravel().tolist() == [65504.0, -65504.0]
