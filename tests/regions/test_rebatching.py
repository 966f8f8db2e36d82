"""Models that are fixed to one sample, for several: what is widened, and which node is named where that fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper, parser

from npuc.errors import ModelError
from npuc.ir import Array
from npuc.regions.rebatching import rebatch
from tests.cli.process import npuc

CONSTANTS = {
    "all": np.array([1, -1]), "wide": np.array([1, 2, 2, 4]), "merged": np.array([2, -1]),
    "sizes": np.array([1, 4, 4, 4]), "w": np.arange(4.0, dtype=np.float32), "column": np.array([1, 4, 1, 1]),
    "zero": np.array([0, -1]), "initial": np.zeros((1, 4, 2, 2), np.float32),
}  # fmt: skip


def model(body: str, shape: str = "1,4,2,2") -> onnx.ModelProto:
    """A model of these nodes: the last writes y."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> net (float[{shape}] x) => (float[n, m] y) {{ {body} }}"""
    made = parser.parse_model(text)
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in CONSTANTS.items() if k in used)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None))
    return made


def run(proto: onnx.ModelProto, x: Array) -> Array:
    return np.asarray(ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0])


@pytest.mark.parametrize(
    "body",
    [
        "y = Reshape(x, all)",
        "y = Reshape(x, zero)",
        "y = Reshape(x, wide)",
        "t = Reshape(x, all) u = Relu(t) y = Reshape(u, wide)",
        "c = Reshape(w, column) y = Mul(x, c)",  # the constant's own 1 stays
        "y = Add(x, initial)",
        "y = Resize(x, , , sizes)",
        "y = GlobalAveragePool(x)",
        "y = Softmax<axis = 1>(x)",
        "s = Shape(x) t = Relu(x) y = Reshape(t, s)",
        "c = Constant<value = int64[2] {1, 16}>() y = Reshape(x, c)",
    ],
)
def test_every_sample_is_what_it_was_alone(body: str, tmp_path: Path) -> None:
    before, x = model(body), np.random.default_rng(1).normal(size=(3, 4, 2, 2)).astype(np.float32)
    after = rebatch(model(body), {"x": (3, 4, 2, 2)}, (), tmp_path)
    alone = np.concatenate([run(before, each[None]) for each in x])
    np.testing.assert_allclose(run(after, x), alone, rtol=1e-6)


@pytest.mark.parametrize(("body", "node"), [
    ("t = Relu(x) y = Reshape(t, merged)", "Reshape"), ("y = Softmax<axis = 0>(x)", "Softmax"),
    ("y = ReduceMean<axes = [0]>(x)", "ReduceMean"),
    ("t = Transpose<perm = [1, 0, 2, 3]>(x) y = Relu(t)", "Transpose"),
    ("y = Flatten<axis = 0>(x)", "Flatten"),
])  # fmt: skip
def test_a_node_that_mixes_samples_is_named(body: str, node: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        rebatch(model(body), {"x": (2, 4, 2, 2)}, (), tmp_path)
    (problem,) = refused.value.problems
    assert (problem.code, problem.op) == ("E109", node) and "does not keep 2 apart" in problem.reason


def test_a_model_that_onnxruntime_refuses_then_is_refused(tmp_path: Path) -> None:
    fixed = "s = Constant<value = int64[4] {4, 1, 2, 2}>() y = Reshape(x, s)"
    with pytest.raises(ModelError, match="it runs one sample at a time, and not 2"):
        rebatch(model(fixed), {"x": (2, 4, 2, 2)}, (), tmp_path)


@pytest.mark.parametrize("shape", [(1, 4, 2, 2), (2, 4, 2, 3), (2, 4, 2)])
def test_other_shapes_change_nothing(shape: tuple[int, ...], tmp_path: Path) -> None:
    proto = model("y = Reshape(x, all)")
    assert rebatch(proto, {"x": shape}, (), tmp_path) == model("y = Reshape(x, all)")
    free = model("y = Reshape(x, zero)", "N,4,2,2")
    assert rebatch(free, {"x": (2, 4, 2, 2)}, (), tmp_path) == model("y = Reshape(x, zero)", "N,4,2,2")


def test_a_program_of_several_samples_is_proved_by_the_file_of_one(tmp_path: Path) -> None:
    body = "t = Relu(x) y = Reshape(t, all)"
    onnx.save(model(body), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).normal(size=(6, 4, 2, 2)).astype(np.float32))
    given = ("--calibration", tmp_path / "x.npz", "--input-shape", "x=3,4,2,2", "-o", tmp_path / "o")
    npuc("compile", tmp_path / "m.onnx", "--target", "nvdla-small", *given).done()
    report = npuc("verify", tmp_path / "m.onnx", tmp_path / "o", "--data", tmp_path / "x.npz", "--json").json
    assert (report["status"], report["samples"]) == ("ok", 2)
