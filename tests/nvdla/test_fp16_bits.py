"""fp16 to the bit: the model's arrays against the description, number by number; signs of zero and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.ir import Array
from npuc.targets.nvdla.machine.parameters import FULL
from npuc.targets.nvdla.model import fp16, half_products, run
from tests.nvdla import plain_fp16
from tests.nvdla.programs import Convolution, memory


def _patterns(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    """fp16 numbers of a kind, all finite."""
    match kind:
        case "normal":
            return random.standard_normal(shape).astype(np.float16)
        case "positive":
            return np.abs(random.standard_normal(shape) + 1).astype(np.float16)
        case "uneven":
            return (random.standard_normal(shape) * 10.0 ** random.integers(-6, 4, shape)).astype(np.float16)
        case _:
            bits = random.integers(0, 1 << 16, shape).astype(np.uint16).view(np.float16)
            return np.where(np.isfinite(bits), bits, np.float16(-0.0)).astype(np.float16)


@pytest.mark.parametrize("kind", ["normal", "positive", "uneven", "any"])
@pytest.mark.parametrize("shape", [(3, 40, 5), (2, 64, 9), (4, 1, 4)])
def test_a_group_of_products_is_that_of_the_description(kind: str, shape: tuple[int, int, int]) -> None:
    places, size, kernels = shape
    random = np.random.default_rng(len(kind) + size)
    data, weights = _patterns(random, kind, (places, size)), _patterns(random, kind, (size, kernels))
    found = half_products.multiply(*(half_products.operands(each.astype(np.float32)) for each in (data, weights)))
    for place in range(places):
        for kernel in range(kernels):
            products, top = plain_fp16.group(_bits(data[place]), _bits(weights[:, kernel]))
            assert (int(found.total[place, kernel]), int(found.top[place, kernel])) == (sum(products), top)


def _bits(values: Array) -> list[int]:
    return np.ascontiguousarray(values).view(np.uint16).tolist()


@pytest.mark.parametrize("kind", ["normal", "positive", "uneven"])
def test_a_convolution_adds_groups_as_the_description_does(kind: str) -> None:
    random = np.random.default_rng(7)
    program = Convolution(FULL, (70, 3, 4), (5, 2, 3), "fp16")
    x, w = _patterns(random, kind, (70, 3, 4)), _patterns(random, kind, (5, 70, 2, 3))
    after = run(FULL, [*program.commands(), program.wait()], memory(program.contents(x, w)))
    found = program.read(after)
    for k, row, column in np.ndindex(found.shape):
        groups = [
            (_bits(x[block, row + r, column + s]), _bits(w[k, block, r, s]))
            for block in (slice(0, 64), slice(64, 70))
            for r in range(2)
            for s in range(3)
        ]
        with np.errstate(over="ignore"):
            wanted = np.clip(np.float32(plain_fp16.summed(groups)), -65504, 65504).astype(np.float16)
        assert found[k, row, column] == wanted


def test_a_sum_of_39_bits_rounds_ties_away_from_zero() -> None:
    one, tie = np.array([1.0, -1.0]), np.array([2.0**-39, -(2.0**-39)])
    np.testing.assert_array_equal(half_products.add(one, tie), one + 2 * tie)
    np.testing.assert_array_equal(half_products.add(one, tie * (1 - 2.0**-30)), one)  # hardly less than a tie
    np.testing.assert_array_equal(half_products.add(one, -tie), one - tie)  # below 1 steps are half as large
    np.testing.assert_array_equal(half_products.add(one, -tie / 2), one)


def test_nan_passes_with_its_payload_and_the_weights_come_first() -> None:
    program = Convolution(FULL, (4, 2, 2), (3, 1, 1), "fp16")
    x, w = np.ones((4, 2, 2), np.float16), np.ones((3, 4, 1, 1), np.float16)
    x.view(np.uint16)[2, 0, 1], w.view(np.uint16)[1, 3] = 0x7E01, 0xFE05
    after = run(FULL, [*program.commands(), program.wait()], memory(program.contents(x, w)))
    bits = np.ascontiguousarray(program.read(after)).view(np.uint16)
    assert bits[0].tolist() == [[0x4400, 0x7E01], [0x4400, 0x4400]]
    assert (bits[1] == 0xFE05).all()


ZERO, MINUS = np.float32([0.0, -0.0])


@pytest.mark.parametrize(
    ("found", "negative"),
    [
        (fp16.add(np.float32([-3]), np.float32([3])), True),
        (fp16.add(np.float32([3]), np.float32([-3])), False),
        (fp16.add(np.array([MINUS]), np.array([ZERO])), True),
        (fp16.add(np.array([ZERO]), np.array([MINUS])), False),
        (fp16.subtract(np.array([MINUS]), np.array([MINUS])), True),
        (fp16.multiply(np.float32([-3]), np.array([ZERO])), True),
        (fp16.multiply(np.float32([-1e-30]), np.float32([1e-30])), True),  # too small: zero with its sign
        (fp16.larger(np.array([MINUS]), np.array([ZERO])), False),
        (fp16.smaller(np.array([ZERO]), np.array([MINUS])), True),
        (fp16.rectified(np.array([MINUS])), False),
        (fp16.fp17(np.array([-(2.0**-31)])), True),
        (fp16.stored(np.float32([-1e-9])), True),
    ],
)
def test_a_zero_has_the_sign_of_the_description(found: Array, negative: bool) -> None:
    assert found.tolist() == [0.0]
    assert bool(np.signbit(found[0])) is negative


def test_fp17_rounds_to_even_and_has_no_infinity() -> None:
    values = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1e20, -1e20, 2.0**-30, 2.0**-30 * (1 - 2.0**-13)])
    wanted = [1.0, 1 + 2 * 2.0**-10, 4292870144.0, -4292870144.0, 2.0**-30, 2.0**-30]
    assert fp16.fp17(values).tolist() == wanted
