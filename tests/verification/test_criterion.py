"""What verify asks of a program is relative to what its number format can give for the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc.driver import compile_model
from npuc.frontend import load
from npuc.models.digits import FOLDER
from npuc.program import Program, as_loaded
from npuc.regions.artefact import is_composite
from npuc.samples import loading as data
from npuc.samples.loading import Samples, varied_samples
from npuc.target import Options, Request, target
from npuc.verification.criterion import ENOUGH, criterion, ideal, tolerance
from npuc.verification.equivalence import expected_outputs
from npuc.verification.metrics import Difference, Tolerance
from tests.onnx_models import parse

MODEL = FOLDER / "digits.onnx"


@pytest.fixture(scope="module")
def samples() -> Samples:
    graph = load(MODEL)
    return data.load([FOLDER / "digits_test.npz"], {name: graph.tensors[name] for name in graph.inputs}).first(20)


def _program(precision: str) -> Program:
    ports = [{"name": "input", "shape": [1, 1, 8, 8], "dtype": "float32"}]
    return Program({"target": "t", "precision": precision, "inputs": ports}, {})


def test_a_format_with_twice_the_bits_has_twice_the_decibels(samples: Samples) -> None:
    """A bit is worth 6.02 dB: 16 bits have 48 dB more than 8; fp16 with 11 of them lies between."""
    best = {name: ideal(load(MODEL), name, samples)["n11_Gemm"] for name in ("int8", "fp16", "int16")}
    assert 30 < best["int8"] < 50
    assert best["int16"] - best["int8"] == pytest.approx(48, abs=6)
    assert best["int8"] + 12 < best["fp16"] < best["int16"]


@pytest.mark.parametrize(("precision", "most"), [("int8", 15.0), ("int16", 30.0), ("fp16", 60.0)])
def test_an_output_need_not_be_better_than_enough(samples: Samples, precision: str, most: float) -> None:
    asked = criterion(MODEL, _program(precision), samples)
    sqnr, cosine = asked.of_output("n11_Gemm")
    assert most - 12 <= sqnr <= most
    assert cosine == pytest.approx(np.sqrt(1 - 10 ** (-sqnr / 10)))


def test_what_is_asked_for_takes_its_place(samples: Samples) -> None:
    assert tolerance(MODEL, _program("int8"), samples, 33.0, None) == Tolerance(33.0, 0.95)
    assert tolerance(MODEL, _program("fp16"), samples, None, 0.5) == Tolerance(60.0, 0.5)


def test_made_up_samples_and_fp32_have_no_relative_criterion() -> None:
    graph = load(MODEL)
    synthetic = varied_samples({name: graph.tensors[name] for name in graph.inputs})
    assert not criterion(MODEL, _program("int8"), synthetic).judges
    assert criterion(MODEL, _program("fp32"), synthetic) == Tolerance(60.0, 0.9999)


@pytest.mark.parametrize(("noise", "within"), [(0.1, True), (0.25, False)])
def test_the_limit_of_an_output_decides(noise: float, within: bool) -> None:
    """20 dB and 12 dB, where 15 are asked for."""
    asked, apart = replace(Tolerance(), limits={"y": 15.0}), Difference()
    exact = np.random.default_rng(0).standard_normal(10000)
    apart.add(exact, exact + noise * np.random.default_rng(1).standard_normal(10000))
    assert asked.admits("y", apart) is within


def test_a_program_with_host_regions_is_judged_by_what_fp16_can_give(tmp_path: Path) -> None:
    """Differences of neighbours with a mean of 300: half a step of fp16 is 0.125 there, and the signal about 1."""
    text = "g (float[1,8,6,6] x) => (float[1,8,6,6] y) { a = Relu(x)\n b = Conv(a, w)\n y = Conv(b, v) }"
    keep, differ = np.eye(8, dtype=np.float32), np.eye(8, dtype=np.float32) - np.roll(np.eye(8), 1, 1)
    model = parse(text, w=keep[..., None, None], v=differ[..., None, None])
    onnx.save(model, tmp_path / "m.onnx")
    chip, options = target("nvdla-full"), Options(precision="fp16", deny=("Relu",), proof="off")
    program = as_loaded(compile_model(Request(tmp_path / "m.onnx", chip, options))[0])
    assert is_composite(program)
    x = np.random.default_rng(4).normal(300, 1, (2, 1, 8, 6, 6)).astype(np.float32)
    samples = Samples({"x": x})
    limit = criterion(tmp_path / "m.onnx", program, samples).limits["y"]
    exact = x[:, 0] - np.roll(x[:, 0], -1, 1)
    rounded = x[:, 0].astype(np.float16).astype(np.float32)
    noise = Difference()
    noise.add(exact, rounded - np.roll(rounded, -1, 1))
    assert noise.sqnr_db is not None
    assert limit == pytest.approx(noise.sqnr_db - 6, abs=2)
    assert limit < 30


def test_an_operator_that_npuc_does_not_know_does_not_make_the_criterion_absolute(tmp_path: Path) -> None:
    """As above, with a CumSum along an axis of one element before the layers. 60 dB were asked for."""
    text = "g (float[1,8,6,6] x) => (float[1,8,6,6] y) { a = CumSum(x, k)\n b = Conv(a, w)\n y = Conv(b, v) }"
    keep, differ = np.eye(8, dtype=np.float32), np.eye(8, dtype=np.float32) - np.roll(np.eye(8), 1, 1)
    model = parse(text, w=keep[..., None, None], v=differ[..., None, None], k=np.array(0))
    onnx.save(model, tmp_path / "m.onnx")
    chip, options = target("nvdla-full"), Options(precision="fp16", proof="off")
    program = as_loaded(compile_model(Request(tmp_path / "m.onnx", chip, options))[0])
    assert is_composite(program)
    x = np.random.default_rng(4).normal(300, 1, (2, 1, 8, 6, 6)).astype(np.float32)
    limit = criterion(tmp_path / "m.onnx", program, Samples({"x": x})).limits["y"]
    noise = Difference()
    rounded = x[:, 0].astype(np.float16).astype(np.float32)
    noise.add(x[:, 0] - np.roll(x[:, 0], -1, 1), rounded - np.roll(rounded, -1, 1))
    assert noise.sqnr_db is not None
    assert limit == pytest.approx(noise.sqnr_db - 6, abs=2)


@pytest.mark.parametrize("seed", range(6))
def test_one_sample_of_a_small_output_is_judged_as_many_are(seed: int, tmp_path: Path) -> None:
    """The rounding errors of one number may be far below their deviation."""
    text = "g (float[1,64] x) => (float[1,2] y) { a = Gemm(x, w)\n y = Softmax(a) }"
    weights = np.random.default_rng(2).normal(0, 0.1, (64, 2)).astype(np.float32)
    model = parse(text, w=weights - weights.mean(0))
    onnx.save(model, tmp_path / "m.onnx")
    program = replace(_program("fp16"), manifest=_ports([1, 64]))
    x = np.random.default_rng(seed).normal(100, 1, (1, 1, 64)).astype(np.float32)
    one = criterion(tmp_path / "m.onnx", program, Samples({"x": x})).limits["y"]
    near = x * (1 + np.random.default_rng(9).uniform(-(2**-11), 2**-11, (256, 1, 64)))
    many = criterion(tmp_path / "m.onnx", program, Samples({"x": near.astype(np.float32)})).limits["y"]
    assert one == pytest.approx(many, abs=4)


def _ports(shape: list[int]) -> dict[str, object]:
    return {"target": "t", "precision": "fp16", "inputs": [{"name": "x", "shape": shape, "dtype": "float32"}]}


@pytest.mark.parametrize(("text", "error", "within"), [
    ("s = Sigmoid(x)\n y = Reshape(s, k)", 2.0**-20, True),
    ("s = Sigmoid(x)\n y = Reshape(s, k)", 2.0**-19, False),
    ("s = Sigmoid(x)\n y = Mul(s, x)", 2.0**-20, False), ("s = Relu(x)\n y = Reshape(s, k)", 2.0**-20, False),
])  # fmt: skip
def test_scores_near_zero_need_no_more_digits_than_fp32_has(
    text: str, error: float, within: bool, tmp_path: Path
) -> None:
    model = parse(f"g (float[1,64] x) => (float[1,64] y) {{ {text} }}", k=np.array([1, 64]))
    onnx.save(model, tmp_path / "m.onnx")
    program = replace(_program("fp32"), manifest={**_ports([1, 64]), "precision": "fp32"})
    asked = criterion(
        tmp_path / "m.onnx", program, Samples({"x": np.zeros((1, 1, 64), np.float32)}, synthetic=True)
    )
    apart = Difference()
    apart.add(np.full(64, 1e-7), np.full(64, 1e-7) + error)
    assert asked.admits("y", apart) is within


def test_values_beyond_the_range_of_fp16_are_no_excuse(tmp_path: Path) -> None:
    """The best that fp16 can give is an infinity: minus hundreds of decibels were asked for."""
    text = "g (float[1,64] x) => (float[1,2] y) { a = Mul(x, k)\n b = Relu(a)\n y = MatMul(b, w) }"
    model = parse(text, k=np.array(1e6), w=np.full((64, 2), 1e-6))
    onnx.save(model, tmp_path / "m.onnx")
    program = replace(_program("fp16"), manifest=_ports([1, 64]))
    x = np.random.default_rng(0).standard_normal((4, 1, 64)).astype(np.float32)
    assert criterion(tmp_path / "m.onnx", program, Samples({"x": x})).limits == {"y": 10.0}


STEP = np.float32(0.05)


def _quantised(folder: Path, *, rounds: bool) -> Path:
    """A convolution with integer weights; if it rounds, its ends too, with the names of `npuc quantize`."""
    before = '"x/steps" = QuantizeLinear(x, s, z) "x/rounded" = DequantizeLinear("x/steps", s, z)'
    behind = '"y/steps" = QuantizeLinear("y/exact", s, z) y = DequantizeLinear("y/steps", s, z)'
    between = "v = DequantizeLinear(w, t) "
    nodes = (
        f'{before} {between} "y/exact" = Conv("x/rounded", v) {behind}' if rounds else f"{between} y = Conv(x, v)"
    )
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ {nodes} }}"
    w = np.random.default_rng(2).integers(-127, 128, (8, 8, 1, 1)).astype(np.int8)
    constants = {"w": w, "t": np.float32(0.005), "s": STEP, "z": np.int8(0)}
    model = parse(text, **constants)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("rounds", [False, True])
def test_an_fp32_program_of_a_model_that_rounds_may_round_a_tie_otherwise(rounds: bool, tmp_path: Path) -> None:
    """Its results are multiples of a step. 60 dB were asked for, which a few that are a step off miss."""
    path = _quantised(tmp_path, rounds=rounds)
    program, _ = compile_model(Request(path, target("bm1684"), Options(precision="fp32", proof="off")))
    samples = Samples({"x": np.random.default_rng(4).normal(0.3, 1, (4, 1, 8, 6, 6)).astype(np.float32)})
    limit = criterion(path, as_loaded(program), samples).of_output("y")[0]
    power = np.square(expected_outputs(path, samples)["y"]).mean()
    if rounds:
        assert 15 < limit < 10 * np.log10(power / (STEP**2 / 12)) - 10
    else:
        assert limit == 60


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_model_whose_tensors_are_called_as_the_rounded_ones_is_judged(precision: str, tmp_path: Path) -> None:
    """Names were taken twice, and onnxruntime refused the rounded network: `npuc quantize` gives such names."""
    path = _quantised(tmp_path, rounds=True)
    samples = Samples({"x": np.random.default_rng(4).normal(0.3, 1, (2, 1, 8, 6, 6)).astype(np.float32)})
    assert 15 < ideal(load(path), precision, samples)["y"] < 100


def test_a_program_with_a_bound_input_is_judged(tmp_path: Path) -> None:
    """The samples lack the input, so that onnxruntime could not run the model: a traceback."""
    text = "g (float[1,8,6,6] x, float k) => (float[1,8,6,6] y) { a = Conv(x, w) y = Mul(a, k) }"
    w = np.random.default_rng(2).normal(0.05, 0.3, (8, 8, 1, 1)).astype(np.float32)
    model = parse(text, w=w)
    onnx.save(model, tmp_path / "m.onnx")
    options = Options(bind=(("k", 2.0),), proof="off")
    program, _ = compile_model(Request(tmp_path / "m.onnx", target("nvdla-small"), options))
    assert program.bound == {"k": 2.0}
    assert not is_composite(program)
    samples = Samples({"x": np.random.default_rng(4).normal(0.3, 1, (4, 1, 8, 6, 6)).astype(np.float32)})
    assert criterion(tmp_path / "m.onnx", program, samples).limits == {"y": ENOUGH["int8"]}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_infinite_or_undefined_in_both_hides_no_error_beside_it(value: float) -> None:
    """Before, it counted as the largest float32 in both, and any error beside it was 700 dB below."""
    shared, alone = Difference(), Difference()
    shared.add(np.array([value, 3.0, -4.0]), np.array([value, 3.0, -3.0]))
    assert shared.sqnr_db == pytest.approx(10 * np.log10(25)) and shared.largest == 1
    alone.add(np.array([value, 3.0]), np.array([0.0, 3.0]))
    assert alone.largest > 1e38
