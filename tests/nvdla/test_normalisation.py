"""Local response normalisation on CDP: exact in integers, and close to the formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc.driver import compile_model
from npuc.ir import Array, Node
from npuc.quantize.scales.model_scales import Steps
from npuc.quantize.table import table_of
from npuc.target import Options, Request, target
from npuc.targets.nvdla.arithmetic.normalisation import MOST_ENTRY, square_sums, tables_of
from npuc.targets.nvdla.arithmetic.operators import OPERATORS
from npuc.targets.nvdla.quantisation.tables import normalisation_tables
from tests.compiled import causes
from tests.nvdla.networks import compiled, expect_exact, verified
from tests.onnx_models import network, node, weights

TARGETS = ("nvdla-small", "nvdla-large", "nvdla-full")


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("size", [3, 5, 7, 9])
def test_normalisation_runs_on_cdp_and_is_exact(size: int, name: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("LRN", "c", "y", size=size, alpha=0.5, beta=0.75, bias=1.0),
    ]
    report = verified(network(nodes, (1, 3, 6, 7), {"w": weights(13, 3, 3, 3)}), tmp_path, name)
    expect_exact(report, sqnr_db=30)
    assert report["compiled"]["host_steps"] == []
    assert [each["op"] for each in report["compiled"]["layers"]] == ["convolution", "normalisation"]


def test_two_normalisations_with_tables_of_their_own_follow_one_another(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "c"),
        node("LRN", "c", "n", size=5, alpha=0.1, beta=0.75, bias=2.0),
        node("LRN", "n", "y", size=3, alpha=1.0, beta=0.5, bias=1.0),
    ]
    expect_exact(verified(network(nodes, (1, 3, 6, 7), {"w": weights(8, 3, 1, 1)}), tmp_path), sqnr_db=30)


@pytest.mark.parametrize(("size", "name"), [(1, "nvdla-small"), (11, "nvdla-full")])
def test_windows_that_cdp_does_not_have_are_the_hosts(size: int, name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), node("LRN", "c", "y", size=size)]
    report = verified(network(nodes, (1, 3, 6, 7), {"w": weights(13, 3, 1, 1)}), tmp_path, name)
    assert [each["op"] for each in report["compiled"]["host_steps"]] == ["LRN"]


CONSTANTS = [(1e-4, 5, 0.75, 1.0), (0.5, 3, 0.75, 1.0), (0.05, 9, 0.5, 2.0), (1.0, 7, 0.75, 1.0)]


def _normalised(alpha: float, size: int, beta: float, bias: float) -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("LRN", "c", "y", size=size, alpha=alpha, beta=beta, bias=bias),
    ]
    return network(nodes, (1, 3, 6, 7), {"w": weights(37, 3, 3, 3)})


@pytest.mark.parametrize("constants", CONSTANTS)
def test_int16_is_exact_and_near_the_formula(constants: tuple[float, int, float, float], tmp_path: Path) -> None:
    report = verified(_normalised(*constants), tmp_path, "nvdla-full", precision="int16")
    expect_exact(report, sqnr_db=60)
    assert report["compiled"]["host_steps"] == []


@pytest.mark.parametrize("constants", CONSTANTS)
def test_fp16_is_near_the_formula(constants: tuple[float, int, float, float], tmp_path: Path) -> None:
    report = verified(_normalised(*constants), tmp_path, "nvdla-full", precision="fp16")
    assert all(each["cosine"] >= 0.9999 and each["sqnr_db"] >= 60 for each in report["outputs"])
    assert [each["op"] for each in report["compiled"]["layers"]] == ["convolution", "normalisation"]


@pytest.mark.parametrize("precision", ["int16", "fp16"])
def test_wide_windows_that_cdp_does_not_have_are_the_hosts(precision: str, tmp_path: Path) -> None:
    report = verified(_normalised(1e-4, 11, 0.75, 1.0), tmp_path, "nvdla-full", precision=precision)
    assert [each["op"] for each in report["compiled"]["host_steps"]] == ["LRN"]


@pytest.mark.parametrize("precision", ["int16", "fp16"])
def test_a_loadable_holds_tables_of_16_bits(precision: str, tmp_path: Path) -> None:
    """Export interprets what it writes, and compares the results with the program's."""
    _, _, program = compiled(_normalised(0.5, 5, 0.75, 1.0), tmp_path, "nvdla-full", precision=precision)
    assert "network.nvdla" in target("nvdla-full").export(program, "loadable")


def test_squares_beyond_the_first_and_last_channel_count_nothing() -> None:
    x = np.array([1, 2, 3, 4]).reshape(1, 4, 1, 1)
    assert square_sums(x, 3).ravel().tolist() == [1 + 4, 1 + 4 + 9, 4 + 9 + 16, 9 + 16]
    assert square_sums(x, 7).ravel().tolist() == [30] * 4


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_the_tables_follow_a_power_over_all_sums(strength: float) -> None:
    """Strength: alpha / size * largest sum: how much larger than the bias the sum becomes."""
    most = 5 * 128**2

    def power(sums: Array) -> Array:
        return MOST_ENTRY * (1 + strength * np.maximum(sums, 0) / most) ** -0.75

    sums = np.arange(most + 1)
    error = np.abs(tables_of(power, most)(sums) - power(sums.astype(np.float64)))
    assert error.max() <= {0.01: 1.0, 1.0: 1.5, 100.0: 60.0}[strength]


@pytest.mark.parametrize("zero", [0, -7])
@pytest.mark.parametrize("alpha", [1e-4, 0.05, 1.0])
def test_results_are_the_formulas_within_little_more_than_rounding(alpha: float, zero: int) -> None:
    """AlexNet's constants and stronger ones, on inputs of +-4; steps of the result."""
    x = np.random.default_rng(0).integers(-128, 128, (1, 24, 9, 9)).astype(np.int8)
    real = (x.astype(np.float64) - zero) / 32
    exact = real / (1.0 + alpha / 5 * square_sums(real, 5)) ** 0.75
    y = Steps(float(np.abs(exact).max() / 120), zero)
    given = Node("LRN", ("x",), ("y",), {"size": 5, "alpha": alpha, "beta": 0.75, "bias": 1.0})
    tables, attrs = normalisation_tables(given, Steps(1 / 32, zero), y)
    entries = [np.array(each, np.int16) for each in (tables.le, tables.lo)]
    (found,) = OPERATORS["NvLrn"].compute(Node("NvLrn", ("x", "le", "lo"), ("y",), attrs), [x, *entries])
    assert np.abs(found - (exact / y.scale + zero)).max() < 0.52


@pytest.mark.parametrize(("scale", "codes"), [(10.0, ["E301"]), (0.01, [])])
def test_a_zero_point_that_cdps_converter_cannot_add_is_the_hosts(
    scale: float, codes: list[str], tmp_path: Path
) -> None:
    """A result of 127 steps of 10 is 2^26 and more in the converter, whose offset has 25 bits."""
    onnx.save(_normalised(1e-4, 5, 0.75, 1.0), tmp_path / "m.onnx")
    table = table_of({"y": {"scale": scale, "zero_point": 127}})
    options = Options(level="0", scales_in=table, proof="off")
    program, _ = compile_model(Request(tmp_path / "m.onnx", target("nvdla-full"), options))
    assert causes(program) == codes
