"""`--input-shape`: dynamic dimensions are refused with the flag that binds them, and the flag works."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from tests.cli.process import Digits, WriteModel, compiled, npuc

NAME_WITH_EQUALS = "g (float[N,3,8,8] x) => (float[N,3,8,8] y) { y = Relu(x) }"


@pytest.fixture
def dynamic(digits: Digits, write: WriteModel) -> Path:
    """Digits with an unknown batch."""
    model = onnx.load(digits.model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return write(model)


def test_a_dynamic_batch_is_refused_with_the_flag_and_the_flag_works(dynamic: Path, tmp_path: Path) -> None:
    message = compiled(dynamic, tmp_path / "o").refused("E106")
    assert "dynamic dimension (N)" in message
    (flag,) = re.findall(r"help: (--input-shape \S+)", message)
    assert flag == "--input-shape input=1,1,8,8"
    compiled(dynamic, tmp_path / "o", *flag.split()).done()


def test_check_takes_the_flag_too(dynamic: Path) -> None:
    npuc("check", dynamic, "--target", "easynpu").refused("E106")
    npuc("check", dynamic, "--target", "easynpu", "--input-shape", "input=1,1,8,8").done()


def test_the_program_of_a_bound_model_verifies(dynamic: Path, digits: Digits, tmp_path: Path) -> None:
    compiled(dynamic, tmp_path / "o", "--input-shape", "input=1,1,8,8",
         "--calibration", digits.few).done()  # fmt: skip
    npuc("verify", dynamic, tmp_path / "o", "--data", digits.few).done()


def test_a_name_may_hold_equals_signs(write: WriteModel, tmp_path: Path) -> None:
    model = onnx.load(write(NAME_WITH_EQUALS))
    model.graph.input[0].name = model.graph.node[0].input[0] = "a=1,2=b"
    path = write(model)
    (flag,) = re.findall(r"help: --input-shape (\S+)", compiled(path, tmp_path / "o").refused("E106"))
    assert flag == "a=1,2=b=1,3,8,8"
    compiled(path, tmp_path / "o", "--input-shape", flag).done()


def test_the_last_of_two_shapes_for_an_input_counts(dynamic: Path) -> None:
    command = ("check", dynamic, "--target", "easynpu", "--input-shape", "input=7,7,7,7")
    npuc(*command, "--input-shape", "input=1,1,8,8").done()


@pytest.mark.parametrize("shape", ["input=1,1,8", "input=1,1,9,8", "other=1,1,8,8", "input="])
def test_a_shape_that_contradicts_the_model_is_refused(dynamic: Path, shape: str) -> None:
    npuc("check", dynamic, "--target", "easynpu", "--input-shape", shape).refused("E109")


def test_a_batch_of_two_is_two_networks_of_one_image(dynamic: Path, tmp_path: Path) -> None:
    compiled(dynamic, tmp_path / "o", "--input-shape", "input=2,1,8,8").done()
    npuc("verify", dynamic, tmp_path / "o").done()


def test_a_large_batch_is_refused_by_the_target_and_left_to_the_host(dynamic: Path, tmp_path: Path) -> None:
    shape = ("--input-shape", "input=65,1,8,8")
    strict = npuc("check", dynamic, "--target", "easynpu", "--strict", *shape)
    refused = compiled(dynamic, tmp_path / "o", "--strict", *shape)
    for outcome in (strict, refused):
        assert outcome.code == 1 and "[65, 1, 8, 8]" in outcome.err and "batch is 1" in outcome.err
    assert not (tmp_path / "o").exists()
    left = npuc("check", dynamic, "--target", "easynpu", *shape).done()
    assert "on the host" in left and "[65, 1, 8, 8]" in left and "batch is 1" in left


@pytest.mark.parametrize(
    "shape", ["input", "1,1,8,8", "=1,1,8,8", "input=0,1,8,8", "input=-1,1,8,8", "input=1.0,1,8,8", "input=1,,8",
              "input=1,1,8,8,", "input=a", "input=1x1x8x8", f"input={'9' * 5000}"],
)  # fmt: skip
def test_a_shape_of_another_form_is_a_usage_error(dynamic: Path, shape: str) -> None:
    message = npuc("check", dynamic, "--target", "easynpu", "--input-shape", shape).usage()
    assert "not of the form NAME=1,3,224,224" in message
