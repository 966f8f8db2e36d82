"""ONNX's backend interface: prepare and run on every target, and a part of ONNX's own suite."""

from __future__ import annotations

import re
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import npuc
from npuc.errors import DataError, ModelError, NpucError
from npuc.models.digits import FOLDER
from npuc.onnx_suite import suite
from npuc.registry import TARGETS
from tests.files import arrays
from tests.onnx_models import parse

PAGE = Path(__file__).resolve().parents[1] / "docs" / "onnx-backend.md"
PART = (
    "test_basic_conv_without_padding", "test_conv_with_strides_padding", "test_relu", "test_gemm_all_attributes",
    "test_maxpool_2d_strides", "test_globalaveragepool", "test_add", "test_concat_2d_axis_1", "test_sigmoid",
    "test_clip", "test_reduce_min_default_axes_keepdims_example", "test_softmax_axis_1", "test_where_example",
    "test_reshape_negative_dim", "test_string_concat", "test_sequence_insert_at_back", "test_det_2d",
    "test_attention_4d_fp16", "test_rms_normalization_2d_axis1",
)  # fmt: skip
SCALAR = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[2,3] x, float low, float high) => (float[2,3] y) { y = Clip(x, low, high) }""")


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("target", ["easynpu", "nvdla-large", "bm1684"])
def test_a_part_of_the_suite_has_no_failure(target: str) -> None:
    tests = {name: case for case in suite(target).test_cases.values() for name in vars(case)}
    kinds: dict[str, int] = {}
    for name in (f"{each}_cpu" for each in PART):
        result = unittest.TestResult()
        tests[name](name).run(result)
        assert not result.failures and not result.errors, (name, result.failures, result.errors)
        kinds[name] = len(result.skipped)
        assert all(re.match(r"error\[E\d+\]", reason) for _, reason in result.skipped)
    assert kinds["test_relu_cpu"] == kinds["test_basic_conv_without_padding_cpu"] == kinds["test_add_cpu"] == 0
    assert kinds["test_where_example_cpu"] == 0


@pytest.mark.parametrize("others", ["float", "double", "int32", "bfloat16"])
def test_numbers_are_cast_from_and_to_bfloat16(target: str, others: str) -> None:
    values = np.linspace(-3, 3, 12).reshape(3, 4)
    for source, result in (("bfloat16", others), (others, "bfloat16")):
        types = [onnx.TensorProto.DataType.Value(each.upper()) for each in (source, result)]
        given, wanted = (helper.tensor_dtype_to_np_dtype(each) for each in types)
        text = f"g ({source}[3, 4] x) => ({result}[3, 4] y) {{ y = Cast<to = {types[1]}>(x) }}"
        model = parse(text, 19)
        (found,) = npuc.backend(target).prepare(model).run([values.astype(given)])
        assert found.dtype == wanted
        np.testing.assert_array_equal(found.astype(float), values.astype(given).astype(wanted).astype(float))


def test_a_wrong_result_fails_the_suite() -> None:
    """The tolerance of an int8 target is no blank cheque."""
    tests = suite("easynpu")
    wanted = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 1, 2, 4)
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,1,2,4] x) => (float[1,1,2,4] y) { y = Relu(x) }""")
    outputs = tests.backend.prepare(model).run([wanted])
    tests.assert_similar_outputs([np.maximum(wanted, 0)], tuple(outputs), 1e-3, 1e-7)
    with pytest.raises(AssertionError, match="Not equal"):
        tests.assert_similar_outputs([np.maximum(wanted, 0)], (outputs[0] + 0.05,), 1e-3, 1e-7)


BEFORE = {"easynpu": 482, "nvdla-small": 434, "nvdla-large": 434, "nvdla-full": 434, "bm1684": 290}
"""Tests that ran on the NPU alone before there were host regions."""


def test_the_page_has_no_failures_and_what_ran_on_the_npu_still_does() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in TARGETS:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        npu, mixed, host, passed, refused, failed = (int(each) for each in row.split("|")[2:-1])
        assert npu > BEFORE[name] and npu + mixed + host == passed and passed + refused == 2024 and failed == 0
        (line,) = [line for line in text.splitlines() if line.startswith(f"- {name}: ")]
        assert float(line.partition("(")[2].removesuffix(" %)")) >= 95


def test_a_model_runs_by_position_and_by_name(target: str) -> None:
    model = onnx.load(FOLDER / "digits.onnx")
    image = arrays(FOLDER / "digits_test.npz")["x"][0].astype(np.float32)
    session = onnxruntime.InferenceSession(str(FOLDER / "digits.onnx"))
    port = session.get_inputs()[0]
    exact = session.run(None, {port.name: image.reshape(port.shape)})[0]
    prepared = npuc.backend(target).prepare(model, calibration=FOLDER / "digits_calibration.npz")
    (found,) = prepared.run([image.reshape(port.shape)])
    assert found.shape == exact.shape and found.argmax() == exact.argmax()
    assert (prepared.run({port.name: image.reshape(port.shape)})["n11_Gemm"] == found).all()
    assert len(prepared.programs) == 1


def test_weights_may_be_inputs_and_are_compiled_once_for_their_values() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,2,4,4] x, float[3,2,1,1] w) => (float[1,3,4,4] y) { y = Conv(x, w) }""")
    random = np.random.default_rng(0)
    x, w = random.standard_normal((1, 2, 4, 4)).astype("f"), random.standard_normal((3, 2, 1, 1)).astype("f")
    prepared = npuc.backend("bm1684").prepare(model)
    for weights, programs in ((w, 1), (2 * w, 2), (w, 2)):
        (found,) = prepared.run([x, weights])
        np.testing.assert_allclose(found, np.einsum("nchw,oc->nohw", x, weights[:, :, 0, 0]), rtol=1e-5, atol=1e-6)
        assert len(prepared.programs) == programs


def test_scalars_are_data_like_any_other(target: str) -> None:
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    found = npuc.backend(target).run_model(SCALAR, [x, np.float32(-1), np.float32(1)])[0]
    np.testing.assert_allclose(found, x.clip(-1, 1), atol=0.05)


def test_a_node_runs_alone(target: str) -> None:
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 1, 4, 4)
    (found,) = npuc.backend(target).run_node(node, [x], opset_version=16)
    np.testing.assert_allclose(found, np.where(x > 0, x, x / 2), atol=0.02)


def test_what_is_fed_wrongly_is_refused() -> None:
    prepared = npuc.backend("easynpu").prepare(SCALAR)
    x: Any = np.zeros((2, 3), np.float32)
    with pytest.raises(DataError) as few:
        prepared.run([x])
    assert few.value.problems[0].code == "E401" and few.value.problems[0].tensor == "low"
    with pytest.raises(ModelError) as text:
        prepared.run([x, "low", x])
    assert text.value.problems[0].code == "E109"
    with pytest.raises(NpucError):
        prepared.run([np.zeros((7, 3), np.float32), np.float32(0), np.float32(1)])


def test_the_simulators_run_on_the_cpu() -> None:
    assert npuc.backend("easynpu").supports_device("CPU") and not npuc.backend("easynpu").supports_device("CUDA")
    with pytest.raises(ValueError, match=r"no target 'easynp'\. Did you mean 'easynpu'"):
        npuc.backend("easynp")
