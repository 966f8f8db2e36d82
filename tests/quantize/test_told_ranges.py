"""Ranges that a quantised model gives, and those that it leaves open. Expected values: onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import npuc
from npuc import program
from npuc.errors import DataError
from npuc.ir import Array
from npuc.program import Program
from npuc.samples.loading import Samples, save
from tests.compiled import checked
from tests.onnx_models import normal, parse

TARGETS = [("easynpu", {}), ("nvdla-small", {}), ("bm1684", {"precision": "int8"})]
ROUNDED = "{0}q = QuantizeLinear({0}, s, z)\n {0}d = DequantizeLinear({0}q, s, z)\n"


def _model(size: float, nodes: str) -> onnx.ModelProto:
    """A model of tensors of this size, whose nodes semicolons divide; `a!` rounds `a`."""
    lines = (ROUNDED.format(each[:-1]) if each.endswith("!") else f"{each}\n" for each in nodes.split("; "))
    output = "yd" if nodes.endswith("!") else "y"
    random = np.random.default_rng(4)
    constants = {name: normal(random, (8, n, 1, 1)) / 3 for name, n in (("w", 8), ("v", 8), ("u", 16))}
    scales = {"s": np.array(size / 32, np.float32), "z": np.array(0, np.int8), "r": np.array(0.5, np.float32)}
    return parse(
        f"g (float[1,8,6,6] x) => (float[1,8,p,q] {output}) {{ {''.join(lines)} }}", **constants, **scales
    )


@pytest.mark.parametrize(("name", "options"), TARGETS)
@pytest.mark.parametrize("size", [0.01, 1, 100])
@pytest.mark.parametrize(
    "nodes",
    [
        "x!; a = Conv(xd, w); a!; h = Relu(ad); h!; b = Conv(hd, v); b!; y = Identity(bd)",
        "x!; a = Conv(xd, w); a!; h = Relu(ad); b = Conv(h, v); b!; y = GlobalAveragePool(bd)",
        "x!; c = Concat <axis = 1> (xd, xd); a = Conv(c, u); a!; h = Relu(ad); b = Mul(h, r); y = Conv(b, v); y!",
    ],
)
def test_tensors_around_host_regions_have_the_model_s_ranges(
    nodes: str, size: float, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Without data, whatever the size of the model's values: synthetic ones would be of another."""
    found = _compiled(_model(size, nodes), tmp_path, name, **options, deny=["Relu"])
    assert found.ranges.origin == "model"
    report = checked(found, tmp_path, Samples({"x": _values(size)}))
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 15


@pytest.mark.parametrize(("name", "options"), TARGETS)
@pytest.mark.parametrize(
    ("nodes", "tensor", "op"),
    [
        ("a = Conv(x, w); a!; y = Conv(ad, v); y!", "x", None),
        ("x!; a = Conv(xd, w); a!; y = Conv(ad, v)", "y", "Conv"),
        ("x!; a = Conv(xd, w); a!; h = Sin(ad); y = Conv(h, v)", None, "Conv"),
    ],
)
def test_a_tensor_without_a_range_needs_samples(
    nodes: str, tensor: str | None, op: str | None, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """As where the first or the last layer is left out of a quantisation: the error names the tensor."""
    model = _model(10, nodes)
    with pytest.raises(DataError) as error:
        _compiled(model, tmp_path, name, **options)
    (problem,) = error.value.problems
    assert (problem.code, problem.tensor, problem.op) == ("E404", tensor, op)
    save(tmp_path / "x.npz", {"x": _values(10)})
    found = _compiled(model, tmp_path, name, **options, calibration=tmp_path / "x.npz")
    report = checked(found, tmp_path, Samples({"x": _values(10)}))
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 15


def _compiled(model: onnx.ModelProto, folder: Path, name: str, **options: Any) -> Program:
    onnx.save(model, folder / "m.onnx")
    program.save(npuc.compile(folder / "m.onnx", name, level="0", **options).program, folder / "out.npu")
    return program.load(folder / "out.npu")


def _values(size: float) -> Array:
    return np.random.default_rng(5).normal(size, size, (6, 1, 8, 6, 6)).astype(np.float32)
