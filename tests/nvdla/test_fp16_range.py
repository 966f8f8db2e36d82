"""Values beyond the range of fp16: the host computes them, and a warning names those that lose bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import npuc
from npuc.errors import DoesNotFit, Problem
from tests.cli.process import npuc as npuc_run
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights


def _network(gain: float) -> onnx.ModelProto:
    nodes = [
        node("Conv", "x u", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b"),
        node("Conv", "b v", "c"), node("Add", "c b", "y"),
    ]  # fmt: skip
    constants = {"u": np.float32(gain) * weights(16, 3, 3, 3), "v": weights(16, 16, 1, 1)}
    return network(nodes, (1, 3, 8, 8), constants)


def _warnings(model: onnx.ModelProto, folder: Path, **options: Any) -> list[dict[str, Any]]:
    _, _, program = compiled(model, folder, "nvdla-full", **options)
    found: list[dict[str, Any]] = program.manifest["report"]["warnings"]
    return found


@pytest.mark.parametrize("gain", [1.0, 1e4])
def test_a_network_within_the_range_gives_no_warning(gain: float, tmp_path: Path) -> None:
    assert _warnings(_network(gain), tmp_path, precision="fp16") == []


def _refused(model: onnx.ModelProto, folder: Path) -> list[Problem]:
    with pytest.raises(DoesNotFit) as error:
        compiled(model, folder, "nvdla-full", precision="fp16")
    return list(error.value.problems)


def test_what_leaves_the_range_is_refused_with_its_layer_and_how_far_it_reaches(tmp_path: Path) -> None:
    """The sum inside the second convolution's pass is in fp32, and no tensor of it is in memory."""
    found = _refused(_network(5e4), tmp_path)
    assert {each.tensor for each in found} == {"b", "y"}
    first = found[0]
    assert (first.code, first.node, first.op, first.tensor) == ("E301", "a", "Conv", "b")
    assert "synthetic samples" in first.reason and "65504" in str(first.limit) and first.remedy
    assert float(first.reason.split("+/-")[1].split()[0]) > 65504


def test_values_that_are_all_tiny_are_named_too(tmp_path: Path) -> None:
    found = _warnings(_network(1e-6), tmp_path, precision="fp16")
    assert [each["tensor"] for each in found] == ["b", "y"]
    assert "loses bits" in found[0]["reason"]


def test_factors_that_fp16_would_make_zero_are_refused(tmp_path: Path) -> None:
    """Their products are of ordinary size: only the factors show it."""
    model = network([node("Conv", "x w", "y")], (1, 3, 6, 6), {"w": 1e-9 * weights(4, 3, 1, 1)})
    (found,) = _refused(model, tmp_path)
    assert found.code == "E301" and "no factor is larger than" in found.reason
    product = network([node("Mul", "x c", "y")], (1, 3, 6, 6), {"c": np.float32([1e-9])})
    assert "no factor is larger than" in _refused(product, tmp_path)[0].reason


@pytest.mark.parametrize("exponent", [-60, -26, 15, 20, 60, 100])
@pytest.mark.parametrize("op", ["Relu", "Sigmoid"])
def test_the_host_computes_what_fp16_does_not_hold(op: str, exponent: int) -> None:
    """Before, values became 0 or 65504 with a warning, and a few that saturated ended in E603."""
    model = network([node("Conv", "x w", "a"), node(op, "a", "y")], (1, 3, 6, 6), {"w": weights(4, 3, 1, 1)})
    x = (np.random.default_rng(1).standard_normal((4, 3, 6, 6)) * 2.0**exponent).astype(np.float32)
    program = npuc.compile(model, "nvdla-full", precision="fp16", calibration=x)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = np.concatenate([session.run(None, {"x": each[None]})[0] for each in x])
    np.testing.assert_allclose(program.run(x)["y"].reshape(wanted.shape), wanted, rtol=1e-6)


def test_zeros_and_what_is_not_a_number_give_no_warning(tmp_path: Path) -> None:
    """The root of what is negative is computed by the host."""
    model = network([node("Sqrt", "x", "a"), node("Conv", "a w", "y")], (1, 3, 6, 6), {"w": weights(4, 3, 1, 1)})
    assert _warnings(model, tmp_path, precision="fp16") == []
    assert _warnings(_network(0.0), tmp_path, precision="fp16") == []


def test_integers_have_scales_instead(tmp_path: Path) -> None:
    assert _warnings(_network(5e4), tmp_path, precision="int16") == []


def test_the_command_line_prints_warnings_and_reports_them(tmp_path: Path) -> None:
    path = tmp_path / "n.onnx"
    onnx.save(_network(1e-6), path)
    arguments = ["compile", path, "--target", "nvdla-full", "--precision", "fp16", "-o", tmp_path / "n.npu"]
    done = npuc_run(*arguments, "--json")
    assert done.code == 0
    assert "warning[W301] Conv 'a', tensor 'b': its values reach +/-" in done.err
    assert [each["tensor"] for each in done.json["warnings"]] == ["b", "y"]
    assert npuc_run(*arguments, "--quiet").err == ""


def test_calibration_data_says_what_values_there_are(tmp_path: Path) -> None:
    path, data = tmp_path / "n.onnx", tmp_path / "small.npz"
    onnx.save(_network(5e4), path)
    np.savez(data, x=np.full((2, 1, 3, 8, 8), 1e-3, np.float32))
    arguments = ["compile", path, "--target", "nvdla-full", "--precision", "fp16", "--calibration", data]
    done = npuc_run(*arguments, "-o", tmp_path / "n.npu")
    assert done.code == 0 and "warning" not in done.err
