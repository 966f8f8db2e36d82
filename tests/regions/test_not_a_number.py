"""Networks that make NaN of noise: made-up samples refuse nothing, and NaN is 0 wherever it becomes an integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import npuc
from npuc.driver import compile_model
from npuc.errors import DataError
from npuc.host.step import quantise
from npuc.ir import Array
from npuc.reference import session as runtime
from npuc.reports.summaries import verify_summary
from npuc.samples.loading import Samples
from npuc.target import Options, Request, target
from npuc.text.escaping import escape_report
from npuc.verification.metrics import Tolerance
from tests.compiled import checked, program_of
from tests.onnx_models import parse

HEAD = "g (float[1,8,6,6] x) => (float[1,8,6,6] y) "
SAME = "pads = [1, 1, 1, 1]"


def fp32(model: Path, x: Array) -> list[Array]:
    """The model's output y for every sample."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return [np.asarray(session.run(["y"], {"x": each})[0]) for each in x]


BODIES = {
    "a region makes it": f"a = Conv<{SAME}>(x, w)\n b = Log(a)\n y = Conv<{SAME}>(b, v)",
    "the target's own step makes it": f"a = Conv<{SAME}>(x, w)\n b = Sqrt(a)\n y = Conv<{SAME}>(b, v)",
}
SHAPES = {"w": (8, 8, 3, 3), "v": (8, 8, 3, 3)}


@pytest.mark.parametrize("name", ["easynpu", "nvdla-small"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_network_that_makes_nan_of_noise_compiles_and_agrees_in_every_bit(
    body: str, name: str, tmp_path: Path
) -> None:
    program = program_of(parse(f"{HEAD} {{ {body} }}", **SHAPES), tmp_path, name)
    assert checked(program, tmp_path)["bit_exact"]
    low = np.full((2, 1, 8, 6, 6), -3, np.float32)
    low[1] = 3
    found = checked(program, tmp_path, Samples({"x": low}))
    assert found["bit_exact"]


def test_samples_for_which_onnxruntime_gives_nan_are_counted_and_told(tmp_path: Path) -> None:
    program = program_of(parse(f"{HEAD} {{ a = Conv<{SAME}>(x, w)\n y = Log(a) }}", w=(8, 8, 3, 3)), tmp_path)
    x = np.ones((3, 1, 8, 6, 6), np.float32)
    x[1:] *= -1
    report = checked(program, tmp_path, Samples({"x": x}))
    counted = report["outputs"][0]["nan_samples"]
    expected = sum(bool(np.isnan(each).any()) for each in fp32(tmp_path / "m.onnx", x))
    assert counted == expected > 0
    assert f"NaN for {expected} samples" in verify_summary(escape_report(report), Tolerance(12.0, 0.95))


def test_the_user_s_samples_must_keep_the_network_finite(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).standard_normal((4, 8, 6, 6)).astype(np.float32))
    onnx.save(parse(f"{HEAD} {{ {BODIES['a region makes it']} }}", **SHAPES), tmp_path / "m.onnx")
    with pytest.raises(DataError) as caught:
        compile_model(Request(tmp_path / "m.onnx", target("easynpu"), Options(level="0"), [data]))
    (problem,) = caught.value.problems
    assert (problem.code, problem.tensor) == ("E402", "b")
    assert "--deny" in (problem.remedy or "")


@pytest.mark.parametrize("name", ["easynpu", "nvdla-small", "bm1684"])
def test_a_mask_of_infinities_is_left_to_the_host(name: str, tmp_path: Path) -> None:
    body = "a = Conv(x, w)\n m = Add(a, c)\n s = Softmax<axis = 1>(m)\n y = Conv(s, v)"
    mask = np.where(np.arange(8) % 3 == 1, -np.inf, 0).astype(np.float32)
    model = parse(f"{HEAD} {{ {body} }}", w=(8, 8, 1, 1), v=(8, 8, 1, 1), c=mask.reshape(8, 1, 1))
    x = np.random.default_rng(0).standard_normal((6, 1, 8, 6, 6)).astype(np.float32) + 0.5
    program = npuc.compile(model, name, precision="int8", calibration={"x": x})
    found, session = program.run({"x": x})["y"], runtime(model)
    wanted = np.stack([session.run(None, {"x": each})[0][0] for each in x])
    assert np.square(found - wanted).sum() < 0.01 * np.square(wanted).sum()


def test_nan_is_the_integer_of_0() -> None:
    values = np.array([np.nan, -np.inf, np.inf, 0.26], np.float32)
    assert quantise(values, 0.5, 3).tolist() == [3, -128, 127, 4]
