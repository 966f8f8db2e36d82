"""Automatic padding that onnxruntime takes otherwise than ONNX: programs are compared with what ONNX defines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc.api import compile, verify
from npuc.target import Options
from npuc.verification.padding import has_automatic_padding, model_of

SHAPE = (1, 4, 5, 5)


def _saved(folder: Path, op: str, result: list[int], constants: dict[str, Any], **attrs: Any) -> Path:
    node = helper.make_node(op, ["x", *constants], ["y"], "n", auto_pad="SAME_UPPER", **attrs)
    x, y = (helper.make_tensor_value_info(*each) for each in (("x", 1, SHAPE), ("y", TensorProto.FLOAT, result)))
    held = [numpy_helper.from_array(each, name) for name, each in constants.items()]
    graph = helper.make_graph([node], "g", [x], [y], held)
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _transposed(folder: Path) -> Path:
    """Kernel 2, stride 3: 15 rows and columns, of which onnxruntime gives 14."""
    w = np.random.default_rng(0).standard_normal((4, 4, 2, 2)).astype(np.float32) + 0.5
    return _saved(folder, "ConvTranspose", [1, 4, 15, 15], {"w": w}, strides=[3, 3], kernel_shape=[2, 2])


def _dilated(folder: Path) -> Path:
    """Windows of 5 rows and columns, which onnxruntime pads as if they had 3."""
    return _saved(folder, "MaxPool", [1, 4, 5, 5], {}, kernel_shape=[3, 3], dilations=[2, 2], strides=[1, 1])


@pytest.mark.parametrize("name", ["easynpu", "bm1684"])
def test_a_kernel_smaller_than_its_stride_is_verified(tmp_path: Path, name: str) -> None:
    model = _transposed(tmp_path)
    program = compile(model, name, options=Options(precision="fp32" if name == "bm1684" else "int8"))
    report = verify(model, program)
    assert report["status"] == "ok" and program.report["proof"]["model"] is True
    assert report["outputs"][0]["sqnr_db"] > 10


def test_a_dilated_window_is_verified(tmp_path: Path) -> None:
    model = _dilated(tmp_path)
    program = compile(model, "easynpu")
    report = verify(model, program)
    assert report["status"] == "ok" and report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 30


def test_a_dilated_average_is_verified(tmp_path: Path) -> None:
    """AveragePool has dilations since opset 19."""
    model = onnx.load(_saved(tmp_path, "AveragePool", [1, 4, 5, 5], {}, kernel_shape=[3, 2], dilations=[2, 2]))
    model.opset_import[0].version, path = 19, tmp_path / "m.onnx"
    onnx.save(model, path)
    program = compile(path, "easynpu")
    report = verify(path, program)
    assert report["status"] == "ok" and report["bit_exact"] and program.report["proof"]["model"] is True


def test_the_padding_is_that_of_the_definition(tmp_path: Path) -> None:
    """By hand: 3 + (3 - 1) * (2 - 1) rows reach over a border of 2; 15 rows are 14 and one more at the end."""
    (pool,), (transposed,) = (
        model_of(make(tmp_path), {"x": SHAPE}).graph.node for make in (_dilated, _transposed)
    )
    found = {each.name: list(each.ints) for each in pool.attribute if each.ints}
    assert found["pads"] == [2, 2, 2, 2]
    found = {each.name: list(each.ints) for each in transposed.attribute if each.ints}
    assert (found["pads"], found["output_padding"]) == ([0, 0, 0, 0], [1, 1])


def test_a_pool_whose_shape_onnxruntime_mistakes_is_proved_and_verified(tmp_path: Path) -> None:
    """With ceil_mode, extent 2, kernel 1, dilation 2 and stride 2 it infers two rows, and computes one."""
    attrs: dict[str, Any] = {"kernel_shape": [1, 4], "dilations": [2, 2], "strides": [2, 2], "pads": [0, 3, 0, 3]}
    node = helper.make_node("MaxPool", ["x"], ["y"], "n", ceil_mode=1, **attrs)
    x, y = (helper.make_tensor_value_info(*each) for each in (("x", 1, [2, 1, 2, 6]), ("y", 1, [2, 1, 1, 4])))
    path = tmp_path / "m.onnx"
    graph = helper.make_graph([node], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    program = compile(path, "easynpu")
    assert program.report["proof"]["bit_exact"] is True
    report = verify(path, program)
    assert report["status"] == "ok" and report["bit_exact"]


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes as Protocol Buffers encodes it."""
    length, size = len(content), bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content


def test_automatic_padding_is_found_wherever_the_file_names_it_and_not_in_weights(tmp_path: Path) -> None:
    """Fields of a message may stand in any order; weights may hold any bytes."""
    model = onnx.load(_dilated(tmp_path))
    text = numpy_helper.from_array(np.frombuffer(b"SAME_UPPER" * 100, np.uint8), "w").SerializeToString()
    (node,) = model.graph.node
    first, behind = _field(5, text), _field(1, node.SerializeToString())
    path = tmp_path / "ordered.onnx"
    for content, automatic in ((first, False), (first + behind, True), (behind + first, True), (b"", False)):
        path.write_bytes(_field(8, b"") + _field(7, content) if content else b"")
        assert has_automatic_padding(path) is automatic
