"""Models with dynamic quantisation are proved as floats, and their programs give what onnxruntime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import npuc
from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.frontend.dynamic import without_dynamic_quantisation
from npuc.reference import session
from npuc.verification.equivalence import Equivalence
from tests.onnx_models import parse

BODIES = {
    "product": """m = MatMulInteger(q, w, z, wz)
        f = Cast <to = 1> (m)
        k = Mul(s, ws)
        p = Mul(f, k)
        y = Add(p, b)""",
    "convolution": """m = ConvInteger <pads = [1,1,1,1]> (q, w, z)
        f = Cast <to = 1> (m)
        k = Mul(s, ws)
        p = Mul(f, k)
        y = Relu(p)""",
    "values": """d = DequantizeLinear(q, s, z)
        y = Conv(d, w)""",
    "second factor": """v = Transpose(x)
        q, s, z = DynamicQuantizeLinear(v)
        m = MatMulInteger(u, q, uz, z)
        f = Cast <to = 1> (m)
        k = Mul(s, ws)
        y = Mul(f, k)""",
}
SHAPES = {"product": (3, 8), "convolution": (1, 4, 6, 6), "values": (1, 4, 6, 6), "second factor": (3, 8)}


def model_of(kind: str, seed: int = 0) -> onnx.ModelProto:
    """Quantises `x` dynamically; the weights depend on the seed."""
    random, shape = np.random.default_rng(seed), SHAPES[kind]
    dims = ",".join(map(str, shape))
    first = "" if "Dynamic" in BODIES[kind] else "q, s, z = DynamicQuantizeLinear(x)\n"
    text = f"g (float[{dims}] x) => (y) {{ {first} {BODIES[kind]} }}"
    w = random.integers(-120, 120, (8, 8) if len(shape) == 2 else (3, 4, 3, 3)).astype(np.int8)
    constants = {
        "w": w if kind != "values" else w.astype(np.float32) / 100,
        "wz": np.arange(8).astype(np.int8) * 5,
        "ws": np.float32(0.01),
        "u": w.astype(np.uint8),
        "uz": np.uint8(100),
        "b": random.standard_normal(8).astype(np.float32),
    }
    return parse(text, 13, **constants)


@pytest.mark.parametrize(("target", "precision"), [("easynpu", "int8"), ("bm1684", "fp32")])
@pytest.mark.parametrize("kind", BODIES)
def test_a_dynamically_quantised_model_is_proved(kind: str, target: str, precision: str) -> None:
    model = model_of(kind)
    x = np.random.default_rng(1).standard_normal((8, *SHAPES[kind])).astype(np.float32) + 0.5
    program = npuc.compile(model, target, precision=precision, calibration={"x": x})
    assert program.report["proof"]["model"] is True
    wanted = np.stack([session(model).run(None, {"x": each})[0] for each in x])
    error = program.run(x)["y"].reshape(wanted.shape) - wanted
    assert np.square(error).sum() < 3e-3 * np.square(wanted).sum()


@pytest.mark.parametrize("kind", BODIES)
def test_other_weights_are_another_model(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_of(kind), path)
    x = np.random.default_rng(1).standard_normal(SHAPES[kind]).astype(np.float32)
    for seed, differs in ((0, False), (1, True)):
        checked = Equivalence(path, import_model(model_of(kind, seed)))
        found = checked.differing({"x": x}, checked.expected_outputs({"x": x}))
        assert (found is not None) is differs


def test_new_tensors_are_named_unlike_those_of_the_model() -> None:
    model, x = model_of("product"), np.ones(SHAPES["product"], np.float32)
    wanted = session(model).run(None, {"x": x})[0]
    for node in model.graph.node:  # the float weights of `m` would have this name
        node.input[:] = ["m/1/float" if name == "f" else name for name in node.input]
        node.output[:] = ["m/1/float" if name == "f" else name for name in node.output]
    found = session(without_dynamic_quantisation(model)).run(None, {"x": x})[0]
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("target", "precision"), [("easynpu", "int8"), ("nvdla-full", "fp16"), ("bm1684", "fp32")]
)
@pytest.mark.parametrize("kind", BODIES)
def test_a_node_of_the_host_beside_it_refuses_nothing(
    kind: str, target: str, precision: str, tmp_path: Path
) -> None:
    """Its scale of each sample is noise of 8 bits to a floating-point program, which is compared with values."""
    model = model_of(kind)
    model.graph.node.append(helper.make_node("Atan", ["y"], ["atan"]))
    model.graph.output[0].name = "atan"
    onnx.save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((8, *SHAPES[kind])).astype(np.float32) + 0.5
    program = npuc.compile(tmp_path / "m.onnx", target, precision=precision, calibration={"x": x})
    assert program.report["npu_macs_share"] == 1.0
    assert npuc.verify(tmp_path / "m.onnx", program, x)["status"] == "ok"
    wanted = np.stack([session(model).run(None, {"x": each})[0] for each in x])
    error = program.run(x)["atan"].reshape(wanted.shape) - wanted
    assert np.square(error).sum() < 3e-3 * np.square(wanted).sum()


@pytest.mark.parametrize("kind", ["product", "convolution"])
def test_a_floating_point_program_is_verified_on_values(kind: str, tmp_path: Path) -> None:
    onnx.save(model_of(kind), tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((8, *SHAPES[kind])).astype(np.float32) + 0.5
    program = npuc.compile(tmp_path / "m.onnx", "bm1684", precision="fp32", calibration={"x": x})
    assert npuc.verify(tmp_path / "m.onnx", program, x)["status"] == "ok"


@pytest.mark.parametrize("kind", BODIES)
def test_only_integers_that_a_branch_reads_stay(kind: str) -> None:
    value = helper.make_empty_tensor_value_info("v")
    branch = helper.make_graph([helper.make_node("Identity", ["q"], ["v"])], "t", [], [value])
    reader = helper.make_node("If", ["c"], ["d_"], then_branch=branch, else_branch=branch)
    for other, left in ((helper.make_node("Relu", ["c"], ["d_"]), 0), (reader, 1)):
        model = model_of(kind)
        model.graph.node.append(other)
        found = [node.op_type for node in without_dynamic_quantisation(model).graph.node]
        assert found.count("DynamicQuantizeLinear") == left


@pytest.mark.parametrize("op", ["DynamicQuantizeLinear", "DequantizeLinear"])
def test_a_node_without_its_inputs_is_refused(op: str) -> None:
    model = model_of("values")
    model.graph.node.append(helper.make_node(op, [], ["other"]))
    with pytest.raises(NpucError, match="E105"):
        import_model(model)
