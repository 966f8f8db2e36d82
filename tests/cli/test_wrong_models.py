"""What others crash on: each gives one clear block and exit code 1, in text and as JSON, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.process import PROBLEM, Digits, WriteModel, compiled, npuc

Change = Callable[[onnx.ModelProto], object]


def other_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 99


def wrong_weight_shape(model: onnx.ModelProto) -> None:
    wrong = numpy_helper.from_array(np.zeros((16, 7, 3, 3), np.float32), model.graph.node[2].input[1])
    next(each for each in model.graph.initializer if each.name == wrong.name).CopyFrom(wrong)


def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[2].input[0] = model.graph.node[3].output[0]


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[4].op_type = "Frobnicate"


def half_precision(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16


def dynamic_batch(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"


def undefined_tensor(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "nowhere"


def half_precision_weight(model: onnx.ModelProto) -> None:
    name = model.graph.node[2].input[1]
    weight = next(each for each in model.graph.initializer if each.name == name)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), name))


CHANGES: dict[str, tuple[Change, str, list[str]]] = {
    "opset 99": (other_opset, "E103", ["opset 99", "opset 7 to"]),
    "wrong weight shape": (wrong_weight_shape, "E105", ["Conv 'n2_Conv'", "'n2_w'", "[P, 16, K, T...]"]),
    "cycle": (cycle, "E104", ["cycle", "Conv 'n2_Conv'"]),
    "unknown operator": (unknown_operator, "E201", ["Frobnicate 'n4_Relu'"]),
    "fp16": (half_precision, "E107", ["'input'", "float16", "float32"]),
    "dynamic batch": (dynamic_batch, "E106", ["'input'", "batch", "--input-shape input=1,1,8,8"]),
    "undefined tensor": (undefined_tensor, "E104", ["'nowhere'", "'n0_Conv'"]),
    "fp16 weight among fp32": (half_precision_weight, "E107", ["'n2_w'", "float16"]),
}


def expect_refused_on_the_target(path: Path, code: str, facts: list[str], output: Path) -> None:
    """What the host runs is refused where the host is: by compile at once, by check with all that goes there."""
    message = compiled(path, output, "--strict").refused(code)
    assert all(fact in message for fact in facts), message
    assert not output.exists()
    found = npuc("check", path, "--target", "easynpu", "--strict", "--json")
    assert found.code == 1 and {each["place"] for each in found.json["groups"]} == {"host"}
    assert npuc("check", path, "--target", "easynpu").code == 0
    compiled(path, output).done()


def expect_refusal(path: Path, code: str, facts: list[str], output: Path) -> None:
    """compile and check say the same, in text and as JSON; nothing is written."""
    message = compiled(path, output).refused(code)
    assert all(fact in message for fact in facts), message
    outcome = compiled(path, output, "--json")
    assert outcome.code == 1 and outcome.json["status"] == "error"
    (error,) = outcome.json["errors"]
    assert error.keys() == PROBLEM and error["code"] == code
    assert npuc("check", path, "--target", "easynpu").refused(code) == message
    assert npuc("check", path, "--target", "easynpu", "--json").json["errors"] == [error]
    assert not output.exists()


@pytest.mark.parametrize("case", CHANGES)
def test_a_wrong_model_gives_one_clear_block(digits: Digits, write: WriteModel, tmp_path: Path, case: str) -> None:
    change, code, facts = CHANGES[case]
    model = onnx.load(digits.model)
    change(model)
    expect_refusal(write(model), code, facts, tmp_path / "o")


def test_a_model_of_mixed_precision_runs_on_the_host(write: WriteModel, tmp_path: Path) -> None:
    text = "g (float[1,3] x) => (float[1,3] y) { h = Cast <to = 10> (x)\n r = Relu(h)\n y = Cast <to = 1> (r) }"
    expect_refused_on_the_target(write(text), "E107", ["Cast 'Cast_0'", "'h'", "float16"], tmp_path / "o")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_a_truncated_file_gives_one_clear_block(
    digits: Digits, write: WriteModel, tmp_path: Path, share: float
) -> None:
    data = digits.model.read_bytes()
    expect_refusal(write(data[: int(share * len(data))]), "E102", ["m.onnx"], tmp_path / "o")


@pytest.mark.parametrize("content", [b"", b"not a model\n", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n\0", bytes(1000)])
def test_a_file_that_is_no_model_gives_one_clear_block(write: WriteModel, tmp_path: Path, content: bytes) -> None:
    expect_refusal(write(content), "E102", ["m.onnx"], tmp_path / "o")


@pytest.mark.parametrize("name", ["missing.onnx", "missing/m.onnx", "folder", "", "n" * 5000])
def test_a_path_that_is_no_file_gives_one_clear_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    expect_refusal(Path(name), "E101", [], tmp_path / "o")


SMALL = """g (float[1,2,6,6] x) => (float[1,3] y) {
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu(c)
    a = Add(r, x)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
    f = Flatten(p)
    y = Gemm <transB = 1> (f, v)
}"""
"""A network with the operators of digits of which half the file is structure, not weights."""


def test_every_byte_that_flips_gives_a_clear_refusal_or_a_program(write: WriteModel, tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    data = write(SMALL, w=(2, 2, 3, 3), b=(2,), v=(3, 18)).read_bytes()
    for at in random.integers(len(data), size=40):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(random.integers(8))
        outcome = compiled(write(bytes(damaged)), tmp_path / "o")
        assert outcome.code == 0 or outcome.err.startswith("error[E"), outcome.err


def test_an_output_that_depends_on_no_input_is_given_by_the_host(write: WriteModel, tmp_path: Path) -> None:
    body = "a = Constant <value = float[1,3] {1, 2, 3}> ()\n y = Relu(a)"
    alone = f"g () => (float[1,3] y) {{ {body} }}"
    beside = f"g (float[1,3] x) => (float[1,3] z, float[1,3] y) {{ z = Relu(x)\n {body} }}"
    assert "NOTHING runs on the NPU" in compiled(write(alone), tmp_path / "alone").done()
    expect_refused_on_the_target(write(beside), "E202", ["'y'", "constant"], tmp_path / "beside")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_not_finite_are_told_by_name_whatever_hides_them(
    write: WriteModel, tmp_path: Path, value: str
) -> None:
    body = f"w = Constant <value = float[1,1,1,1] {{{value}}}> ()\n c = Conv(x, w)\n y = Relu(c)"
    path = write(f"g (float[1,1,4,4] x) => (float[1,1,4,4] y) {{ {body} }}")
    expect_refused_on_the_target(path, "E202", ["Conv", "'w'", "infinity or NaN"], tmp_path / "o")


def test_a_model_of_two_inputs_takes_data_by_name(write: WriteModel, tmp_path: Path) -> None:
    path = write("g (float[1,3,4,4] a, float[1,3,4,4] b) => (float[1,3,4,4] y) { y = Add(a, b) }")
    values = np.ones((2, 3, 4, 4), np.float32)
    np.savez(tmp_path / "both.npz", a=values, b=values)
    np.savez(tmp_path / "x.npz", x=values)
    compiled(path, tmp_path / "o", "--calibration", tmp_path / "both.npz").done()
    message = compiled(path, tmp_path / "o", "--calibration", tmp_path / "x.npz").refused("E401")
    assert "no array 'a'" in message and "or 'x'" not in message
