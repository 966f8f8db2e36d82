"""Models in Protocol Buffers' encoding without their heavy constants; the onnx package says what they mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc.frontend import load
from npuc.frontend.reading import read_model
from npuc.ir import Array
from npuc.onnx_files.external_data import light, outside
from npuc.onnx_files.wire import fields, join_weights, split_weights, varint
from npuc.storage.mapped import HEAVY, Pieces, place_of

HEAVY_FLOATS = np.linspace(-3, 5, HEAVY // 4 + 7, dtype=np.float32).reshape(1, -1)
HEAVY_BYTES = np.arange(HEAVY + 3).astype(np.int8)


def model(*constants: tuple[str, Array], opset: int = 17) -> onnx.ModelProto:
    """Constants of these names, of which x is the sum with the first."""
    tensors = [numpy_helper.from_array(value, name) for name, value in constants]
    shape = constants[0][1].shape
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    nodes = [helper.make_node("Add", ["x", constants[0][0]], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors, doc_string="text behind the constants")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="a producer")


TWO = (("w", HEAVY_FLOATS), ("light", np.array([1, 2], np.float32)), ("i", HEAVY_BYTES))


def test_a_model_put_together_is_its_serialisation_byte_by_byte() -> None:
    whole = model(*TWO).SerializeToString()
    without = model(*TWO)
    for tensor in without.graph.initializer:
        if tensor.name != "light":
            outside(tensor)
    found = join_weights(without, {"w": HEAVY_FLOATS, "i": HEAVY_BYTES})
    assert (len(found), bytes(found)) == (len(whole), whole)
    assert [each for each in found.pieces if each is HEAVY_FLOATS or each is HEAVY_BYTES] != []


def test_heavy_constants_are_named_with_the_spans_in_which_they_lie() -> None:
    whole = model(*TWO).SerializeToString()
    found, spans = split_weights(whole, "net.onnx")
    assert {name: whole[slice(*span)] for name, span in spans.items()} == {
        "w": HEAVY_FLOATS.tobytes(),
        "i": HEAVY_BYTES.tobytes(),
    }
    w, other, _ = onnx.ModelProto.FromString(found).graph.initializer
    entries = {each.key: each.value for each in w.external_data}
    start, end = spans["w"]
    assert entries == {"location": "net.onnx", "offset": str(start), "length": str(end - start)}
    assert (list(w.dims), w.data_type, w.HasField("raw_data")) == ([1, HEAVY // 4 + 7], TensorProto.FLOAT, False)
    np.testing.assert_array_equal(numpy_helper.to_array(other), [1, 2])


def test_all_but_heavy_constants_is_as_it_was() -> None:
    whole = model(*TWO)
    found = onnx.ModelProto.FromString(split_weights(whole.SerializeToString())[0])
    for each in (whole, found):
        del each.graph.initializer[:]
    assert found == whole


def test_what_was_put_together_comes_apart_into_the_same_arrays() -> None:
    without = model(*TWO)
    outside(without.graph.initializer[0])
    pieces = join_weights(without, {"w": HEAVY_FLOATS})
    data, weights = light(pieces)
    assert weights["w"] is HEAVY_FLOATS and list(weights) == ["w"]
    assert len(data) < 2 * HEAVY
    assert light(b"anything") == (b"anything", {})


def twice(proto: onnx.ModelProto) -> bytes:
    """A tensor whose elements are in two fields: the last one counts."""
    tensor = proto.graph.initializer[0].SerializeToString()
    again = tensor + varint(9 << 3 | 2) + varint(HEAVY_FLOATS.nbytes) + bytes(HEAVY_FLOATS.nbytes)
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString() + varint(5 << 3 | 2) + varint(len(again)) + again
    proto.ClearField("graph")
    return proto.SerializeToString() + varint(7 << 3 | 2) + varint(len(graph)) + graph


def in_floats(proto: onnx.ModelProto) -> bytes:
    """A tensor whose elements are numbers of a field of their own."""
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend(HEAVY_FLOATS.ravel().tolist())
    return proto.SerializeToString()


def too_short(proto: onnx.ModelProto) -> bytes:
    """A tensor with fewer elements than its shape has."""
    proto.graph.initializer[0].dims[1] += 1
    return proto.SerializeToString()


def of_doubles(proto: onnx.ModelProto) -> bytes:
    """A tensor of a type that is read whole."""
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(HEAVY_FLOATS.astype(np.float64), "w"))
    return proto.SerializeToString()


@pytest.mark.parametrize("written", [twice, in_floats, too_short, of_doubles])
def test_constants_written_otherwise_stay_where_they_are(written: Callable[[onnx.ModelProto], bytes]) -> None:
    data = written(model(("w", HEAVY_FLOATS)))
    assert split_weights(data) == (data, {})


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05abc", b"\x08" + b"\xff" * 10, b"\x0b", b"\x09abc"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="end"):
        list(fields(data, 0, len(data)))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63])
def test_numbers_are_encoded_as_protocol_buffers_does(value: int) -> None:
    """As the onnx package writes ir_version, field 1; those of 64 bits that are negative there aside."""
    if value < 2**63:
        assert b"\x08" + varint(value) == onnx.ModelProto(ir_version=value).SerializeToString()
    assert [each[2][1] for each in fields(b"\x08" + varint(value), 0, 1 + len(varint(value)))] == [
        1 + len(varint(value))
    ]


def test_a_file_is_read_without_its_heavy_constants_and_means_the_same(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model(*TWO).SerializeToString())
    left = read_model(path, whole=False)
    assert left.ByteSize() < HEAVY < read_model(path).ByteSize()
    graph = load(path)
    np.testing.assert_array_equal(graph.constants["w"], HEAVY_FLOATS)
    assert place_of(graph.constants["w"]) is not None


def test_what_is_read_of_a_file_stays_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model(("w", HEAVY_FLOATS)).SerializeToString())
    before = load(path).constants["w"]
    path.write_bytes(model(("w", HEAVY_FLOATS + 1)).SerializeToString())
    np.testing.assert_array_equal(before, HEAVY_FLOATS)
    np.testing.assert_array_equal(load(path).constants["w"], HEAVY_FLOATS + 1)
    path.write_bytes(b"")
    np.testing.assert_array_equal(before, HEAVY_FLOATS)


def test_a_link_to_a_model_elsewhere_is_read(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "net.onnx").write_bytes(model(("w", HEAVY_FLOATS)).SerializeToString())
    (tmp_path / "link.onnx").symlink_to(tmp_path / "far" / "net.onnx")
    np.testing.assert_array_equal(load(tmp_path / "link.onnx").constants["w"], HEAVY_FLOATS)


def test_an_old_model_is_read_whole_for_the_converter(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    path.write_bytes(model(("w", HEAVY_FLOATS), opset=6).SerializeToString())
    np.testing.assert_array_equal(load(path).constants["w"], HEAVY_FLOATS)


def test_slices_of_pieces_are_those_of_the_whole() -> None:
    array = np.arange(5, dtype="<u2")
    pieces = Pieces([b"ab", b"", b"c", array, b"de"])
    whole = b"abc" + array.tobytes() + b"de"
    assert bytes(pieces) == whole and len(pieces) == len(whole)
    bounds = range(len(whole) + 2)
    assert all(pieces[start:end] == whole[start:end] for start in bounds for end in bounds)
    assert pieces.array((3, 13)) is array
    assert [pieces.array(span) for span in ((0, 3), (3, 12), (4, 13), (13, 15), (15, 15))] == [None] * 5
