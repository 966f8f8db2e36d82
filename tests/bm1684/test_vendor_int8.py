"""What the int8 functions of the vendor's firmware library compute (docs/bm1684-int8.md), by experiments.

They run on the vendor's chip model, where its library is at hand (NPUC_OKK_LIBS). Expected values are sums of
integers in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from npuc.ir import Array
from npuc.targets.bm1684.machine.local_memory import ceil_div, to_4n_mode
from tests.bm1684 import chips
from tests.bm1684.fix8b import windows
from tests.bm1684.kernels import source, vendor_libraries

X, WEIGHTS, BIAS, OTHER, OUT, WORK = (65536 * at for at in range(6))
"""Offsets in local memory."""
PROTOTYPES = """
void okk_get_id_node(void *id_node);
void okk_set_id_node(void *id_node);
void nodechip_conv_forward_local_fix8b(int bottom, int weight, int bias, int top, int imm, int *bottom_dim,
    int *top_dim, int groups, int kh, int kw, int dh, int dw, int up, int down, int left, int right, int stride_h,
    int stride_w, int using_bias, int result_add, int if_relu, int relu_upper_limit, int unused_ht, int unused_hb,
    int unused_wl, int unused_wr, int ins_h, int ins_w, int rshiftbits, int opd0_sign, int opd1_sign,
    int opd2_sign, bool if_ic_inner, int if_concat_scale, int concat_scale_val, int concat_scale_rshift,
    int concat_output_sign, void *id_node);
void nodechip_pooling_fix8b_forward_local(int bottom, int weight, int bias, int top, int *bottom_dim, int *top_dim,
    int kh, int kw, int up, int down, int left, int right, int stride_h, int stride_w, int ins_w, int ins_h,
    int is_avg_pooling, int avg_pooling_mode, int r_shift, int using_bias, int rshift_typ, int opd0_sign,
    int opd1_sign, int opd2_sign, int res0_sign, int if_relu, void *pid_node);
void nodechip_eltwise_fix8b_forward_local(int *bottoms, int top, int imm, int n, int c, int h, int w,
    int *cstrides, int cstride_en, int op_code, int *scales, int *rshifts, int *signs, int count, int if_relu,
    void *id_node);
"""
"""Of the library's header BM1684.h."""


@dataclass
class Run:
    """A kernel while it is written: what lies in system memory, and the statements."""

    memory: list[Array] = field(default_factory=list[Array])
    statements: list[str] = field(default_factory=list[str])

    @property
    def end(self) -> int:
        """Bytes of system memory so far."""
        return sum(each.size for each in self.memory)

    def place(self, data: Array) -> int:
        """Puts data into system memory; where it starts."""
        at, raw = self.end, np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.memory.append(np.concatenate([raw, np.zeros(-raw.size % 64, np.uint8)]))
        return at

    def images(self, values: Array, offset: int) -> None:
        """A tensor (N, C, H, W) of 8 bits in the 4N mode and the aligned layout."""
        words = to_4n_mode(values)
        shape = ", ".join(map(str, words.shape[:4]))
        at = self.place(words)
        self.statements.append(f"okk_gdma_32bit_cpy_S2L({offset}, SYSTEM + {at}, D4({shape}), NULL, NULL);")

    def rows(self, values: Array, offset: int) -> None:
        """A row (C, bytes) of 8 or 16 bits for each channel, compact."""
        count, columns = values.shape
        bits, rows = 8 * values.itemsize, ceil_div(count, 64)
        stride = f"D4({rows * columns}, {columns}, {columns}, 1)"
        at = self.place(values)
        shape = f"D4(1, {count}, 1, {columns})"
        self.statements.append(f"okk_gdma_{bits}bit_cpy_S2L({offset}, SYSTEM + {at}, {shape}, {stride}, NULL);")

    def call(self, statement: str) -> None:
        """A call that takes and gives the numbers of commands."""
        self.statements.append(
            f"{{ unsigned ids[64]; okk_get_id_node(ids); {statement} okk_set_id_node(ids); okk_poll(); }}"
        )

    def result(self, shape: Sequence[int], libraries: str) -> Array:
        """Runs it: the bytes (N, C, H, W) that lie at OUT."""
        n, c, h, w = shape
        groups, at = ceil_div(n, 4), self.end
        self.statements.append(
            f"okk_gdma_32bit_cpy_L2S(SYSTEM + {at}, {OUT}, D4({groups}, {c}, {h}, {w}), NULL, NULL);"
        )
        kernel = source({"k": "\n".join(self.statements)})
        include = b'#include "okk.h"'
        kernel["kernels.c"] = kernel["kernels.c"].replace(include, include + PROTOTYPES.encode())
        memory = np.concatenate([*self.memory, np.zeros(4 * groups * c * h * w, np.uint8)])
        found = chips.vendor_run(kernel, "k", b"", memory, libraries).memory[at:].reshape(groups, c, h, w, 4)
        return np.moveaxis(found, -1, 1).reshape(-1, c, h, w)[:n]


@pytest.fixture(scope="module")
def libraries() -> str:
    return vendor_libraries()


def shifted(sums: Array, bits: int, least: int, most: int) -> Array:
    """Halves up, as floor(x + 1/2), then the nearest number within limits."""
    return np.clip((sums + ((1 << bits) >> 1)) >> bits, least, most)


def _random(rng: np.random.Generator, shape: tuple[int, ...], *, signed: bool) -> Array:
    limits = np.iinfo(np.int8 if signed else np.uint8)
    return rng.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)


SIGNS = ((True, True), (True, False), (False, True), (False, False))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("x_signed", "w_signed"), SIGNS)
@pytest.mark.parametrize("seed", range(3))
def test_a_convolution_adds_its_bias_rounds_halves_up_and_saturates(
    libraries: str, seed: int, x_signed: bool, w_signed: bool, relu: bool
) -> None:
    rng = np.random.default_rng(seed)
    n, inputs, outputs = int(rng.integers(1, 7)), int(rng.integers(1, 20)), int(rng.choice([3, 64, 70]))
    kernel, stride = (3, 2), tuple(int(each) for each in rng.integers(1, 3, 2))
    pads, bits, groups = tuple(int(each) for each in rng.integers(0, 2, 4)), int(rng.integers(0, 16)), 1
    if seed == 2:
        groups, inputs, outputs = 3, 12, 18
    x = _random(rng, (n, inputs, 7, 6), signed=x_signed)
    w = _random(rng, (outputs, inputs // groups, *kernel), signed=w_signed)
    bias = rng.integers(-(2**15), 2**15, outputs).astype(
        np.int16
    )  # signed: so is the result, whatever x and w are
    taps = windows(x, kernel, stride, pads).reshape(6, n, groups, inputs // groups, -1)
    parts = w.reshape(groups, outputs // groups, inputs // groups, 6).astype(np.int64)
    oh, ow = (7 + sum(pads[:2]) - 3) // stride[0] + 1, (6 + sum(pads[2:]) - 2) // stride[1] + 1
    sums = np.einsum("kngcp,gock->ngop", taps, parts).reshape(n, outputs, oh, ow)
    sums = sums + bias[:, None, None].astype(np.int64)
    run = Run()
    run.images(x, X)
    filled = np.zeros((outputs, 6, ceil_div(w.shape[1], 4) * 4), np.uint8)
    filled[:, :, : w.shape[1]] = w.view(np.uint8).reshape(outputs, -1, 6).swapaxes(1, 2)
    run.rows(filled.reshape(outputs, -1), WEIGHTS)
    run.rows(bias[:, None], BIAS)
    run.call(
        f"nodechip_conv_forward_local_fix8b({X}, {WEIGHTS}, {BIAS}, {OUT}, {WORK}, (int[]){{{n}, {inputs}, 7, 6}},"
        f" (int[]){{{n}, {outputs}, {oh}, {ow}}}, {groups}, 3, 2, 1, 1, {', '.join(map(str, pads))}, {stride[0]},"
        f" {stride[1]}, 1, 0, {int(relu)}, 0, 0, 0, 0, 0, 0, 0, {bits}, {int(x_signed)}, {int(w_signed)}, 1, true,"
        " 0, 0, 0, 0, ids);"
    )
    found = run.result((n, outputs, oh, ow), libraries)
    expected = shifted(sums, bits, 0, 255) if relu else shifted(sums, bits, -128, 127)
    assert (found == expected.astype(np.uint8 if relu else np.int8).view(np.uint8)).all()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("n", [1, 4, 5])
def test_a_depthwise_convolution_is_a_pooling_with_weights(libraries: str, n: int, stride: int) -> None:
    rng = np.random.default_rng(n)
    x, w = _random(rng, (n, 70, 7, 6), signed=True), _random(rng, (70, 3, 3), signed=True)
    bias, pads = rng.integers(-500, 500, 70).astype(np.int16), (0, 1, 1, 0)
    taps = windows(x, (3, 3), (stride, stride), pads)
    sums = np.einsum("knchw,ck->nchw", taps, w.reshape(70, 9).astype(np.int64)) + bias[:, None, None]
    run = Run()
    run.images(x, X)
    run.rows(w.reshape(70, 9).view(np.uint8), WEIGHTS)
    run.rows(bias[:, None], BIAS)
    shape = sums.shape
    run.call(
        f"nodechip_pooling_fix8b_forward_local({X}, {WEIGHTS}, {BIAS}, {OUT}, (int[]){{{n}, 70, 7, 6}},"
        f" (int[]){{{', '.join(map(str, shape))}}}, 3, 3, 0, 1, 1, 0, {stride}, {stride}, 0, 0, 2, 0, 6, 1, 1,"
        " 1, 1, 1, 1, 0, ids);"
    )
    assert (run.result(shape, libraries) == shifted(sums, 6, -128, 127).astype(np.int8).view(np.uint8)).all()


@pytest.mark.parametrize("signed", [True, False])
def test_padding_is_never_the_largest_element(libraries: str, signed: bool) -> None:
    x = _random(np.random.default_rng(5), (5, 70, 7, 6), signed=signed)
    x[0] = np.iinfo(x.dtype).min
    expected = windows(x, (3, 3), (1, 1), (1, 1, 1, 1), int(np.iinfo(x.dtype).min)).max(0)
    run = Run()
    run.images(x, X)
    sign = int(signed)
    run.call(
        f"nodechip_pooling_fix8b_forward_local({X}, 0, 0, {OUT}, (int[]){{5, 70, 7, 6}}, (int[]){{5, 70, 7, 6}},"
        f" 3, 3, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, {sign}, 1, 1, {sign}, 0, ids);"
    )
    assert (run.result((5, 70, 7, 6), libraries) == expected.astype(x.dtype).view(np.uint8)).all()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("scales", "shifts"), [((3, 5), (2, 3)), ((100, 90), (4, 3)), ((127, 127), (0, 0))])
def test_a_sum_shifts_each_operand_to_sixteen_bits(
    libraries: str, scales: tuple[int, int], shifts: tuple[int, int], relu: bool
) -> None:
    rng = np.random.default_rng(sum(scales))
    operands = [_random(rng, (5, 70, 7, 6), signed=True) for _ in range(2)]
    run = Run()
    for values, offset in zip(operands, (X, OTHER), strict=True):
        run.images(values, offset)
    parts = zip(operands, scales, shifts, strict=True)
    total = sum(shifted(scale * x.astype(np.int64), bits, -(2**15), 2**15 - 1) for x, scale, bits in parts)
    listed = [f"(int[]){{{a}, {b}}}" for a, b in (scales, shifts)]
    run.call(
        f"nodechip_eltwise_fix8b_forward_local((int[]){{{X}, {OTHER}}}, {OUT}, {WORK}, 5, 70, 7, 6,"
        f" (int[]){{0, 0}}, 0, 1, {listed[0]}, {listed[1]}, (int[]){{1, 1, {int(not relu)}}},"
        f" 2, {int(relu)}, ids);"
    )
    expected = np.clip(total, 0, 255).astype(np.uint8) if relu else np.clip(total, -128, 127).astype(np.int8)
    assert (run.result((5, 70, 7, 6), libraries) == expected.view(np.uint8)).all()
