"""ONNX files in Protocol Buffers encoding, taken apart and reassembled without copying heavy constants.

onnx's parser copies every constant, and its serialiser does so three times. Here the elements of heavy
initialisers stay in place; the onnx package parses and writes the rest. Sources: onnx.proto; Protocol Buffers,
Encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from npuc.ir import Array
from npuc.storage.mapped import HEAVY, Pieces, size_of

if TYPE_CHECKING:
    import onnx

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Field numbers in ModelProto, GraphProto and TensorProto."""
ELSEWHERE = (13, 14)
"""external_data and data_location of TensorProto: the elements are not in the message."""
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
"""Wire types."""
BYTES = {1: 4, 2: 1, 3: 1, 6: 4}
"""Bytes per element, by TensorProto.DataType, of the types taken apart: float32, uint8, int8, int32."""
MEMORY = "memory"
"""The location of external data that is in memory, not in a file."""


class Content(Protocol):
    """Bytes that need not be contiguous in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> bytes: ...


Span = tuple[int, int]
"""Start and end offset."""


def fields(content: Content, at: int, end: int) -> Iterator[tuple[int, int, Span]]:
    """Number, start of the key, and span of the value of each field. Raises ValueError for an invalid message."""
    while at < end:
        key, start = _varint(content, at, end)
        match key & 7:
            case 2:
                length, start = _varint(content, start, end)
            case 0:
                length = _varint(content, start, end)[1] - start
            case wire:
                length = {FIXED64: 8, FIXED32: 4}.get(wire, end + 1)  # groups are not in onnx.proto
        if start + length > end:
            raise ValueError("a field ends behind its message")
        yield key >> 3, at, (start, start + length)
        at = start + length


def _varint(content: Content, at: int, end: int) -> tuple[int, int]:
    """The value of a varint and the offset after it."""
    value = 0
    for shift, byte in enumerate(content[at : min(end, at + 10)]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise ValueError("a number does not end")


def varint(value: int) -> bytes:
    """A number encoded as a varint."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _delimit(number: int, size: int) -> bytes:
    """Key and length that precede a length-delimited field of this size."""
    return varint(number << 3 | DELIMITED) + varint(size)


def split_weights(content: Content, location: str = MEMORY) -> tuple[bytes, Mapping[str, Span]]:
    """A model with its heavy initialisers turned into external data, and their spans by name.

    location: the location given for the external data; offsets and lengths refer to the content. Initialisers not
    encoded as ONNX exporters do it stay in the model. Raises ValueError for an invalid message.
    """
    found: dict[str, Span] = {}
    written: list[bytes] = []
    for number, at, (start, end) in fields(content, 0, len(content)):
        if number != GRAPH:
            written.append(content[at:end])
            continue
        graph = b"".join(_light_graph(content, (start, end), location, found))
        written += (_delimit(GRAPH, len(graph)), graph)
    return b"".join(written), found


def _light_graph(content: Content, span: Span, location: str, found: dict[str, Span]) -> Iterator[bytes]:
    for number, at, (start, end) in fields(content, *span):
        light = _light_tensor(content, (start, end), location, found) if number == INITIALIZER else None
        yield content[at:end] if light is None else _delimit(INITIALIZER, len(light)) + light


def _light_tensor(content: Content, span: Span, location: str, found: dict[str, Span]) -> bytes | None:
    """The tensor without its elements; None if there are few or they are not all in one field."""
    import onnx

    if span[1] - span[0] < HEAVY:
        return None
    parts = list(fields(content, *span))
    raw = [each for number, _, each in parts if number == RAW_DATA]
    rest = [content[at : each[1]] for number, at, each in parts if number != RAW_DATA]
    if len(raw) != 1 or any(number in ELSEWHERE for number, *_ in parts) or sum(map(len, rest)) >= HEAVY:
        return None
    (start, end), tensor = raw[0], onnx.TensorProto.FromString(b"".join(rest))
    needed = BYTES.get(tensor.data_type, 0) * prod(tensor.dims)
    if end - start != needed or needed < HEAVY or min(tensor.dims) < 1 or tensor.name in found:
        return None
    found[tensor.name] = (start, end)
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("location", location), ("offset", start), ("length", end - start)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor.SerializeToString()


def join_weights(model: onnx.ModelProto, weights: Mapping[str, Array]) -> Pieces:
    """The model's file as if serialised with these initialisers, which are not copied."""
    light = model.SerializeToString(deterministic=True)
    pieces: list[bytes | Array] = []
    for number, at, (start, end) in fields(light, 0, len(light)):
        if number != GRAPH:
            pieces.append(light[at:end])
            continue
        graph = list(_whole_graph(light, (start, end), weights))
        pieces += (_delimit(GRAPH, sum(map(size_of, graph))), *graph)
    return Pieces(pieces)


def _whole_graph(light: bytes, span: Span, weights: Mapping[str, Array]) -> Iterator[bytes | Array]:
    import onnx

    for number, at, (start, end) in fields(light, *span):
        tensor = onnx.TensorProto.FromString(light[start:end]) if number == INITIALIZER else None
        if tensor is None or tensor.name not in weights:
            yield light[at:end]
            continue
        value = weights[tensor.name]
        plain = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        head = plain.SerializeToString() + _delimit(RAW_DATA, value.nbytes)
        yield _delimit(INITIALIZER, len(head) + value.nbytes) + head
        yield value


def may_contain(path: Path, *texts: bytes) -> bool:
    """Whether a model's file may contain one of these texts anywhere but in its initialisers."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return False
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            try:
                return any(content.find(text, *span) >= 0 for span in _without_weights(content) for text in texts)
            except ValueError:  # the encoding is not one that npuc reads: it may
                return True


def _without_weights(content: mmap) -> Iterator[Span]:
    """The parts of a model's file except its initialisers, which are most of its bytes."""
    for field, _, (start, end) in fields(content, 0, len(content)):
        if field == GRAPH:
            yield from (span for number, _, span in fields(content, start, end) if number != INITIALIZER)
        else:
            yield start, end
