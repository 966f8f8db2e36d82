"""The operators that EasyNPU's integer graphs have in addition to npuc's, and the table of both."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from npuc.bits import places
from npuc.ir import Array, Node, TensorType
from npuc.ops import OPS, Op, Operators, Parameter, with_operators
from npuc.ops.attributes import Attribute
from npuc.targets.easynpu.layers.addressing import map_shape
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.rearrangement import problem, rearranged

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter

PIXEL = "IntPixel"
"""A constant pixel of 16 channels, which the host loads."""
WORD_OP = "IntReshape"
"""A node that one reshape word computes; its attributes are the word's fields."""

INT8 = ("int8",)
VALUE = Attribute[int]("value", "integer", "the integer in every channel", low=-128, high=127, internal=True)
FLAT = Attribute[bool]("flat", "flag", "the result is (1, C), not a map", False, internal=True)
FIELDS = tuple(
    Attribute[int](
        name, "integer", place.meaning, getattr(Reshape(), name), place.least, place.most, internal=True
    )
    for name, place in places(Reshape).items()
)


def pixel(node: Node) -> Array:
    """The value of a constant pixel."""
    return np.full((1, LANES, 1, 1), VALUE(node), np.int8)


def word_of(node: Node) -> Reshape:
    """The reshape word that a node's attributes describe."""
    return Reshape(**{each.name: each(node) for each in FIELDS})


def _consistent_word(node: Node, types: Sequence[TensorType]) -> bool:
    """The word reads all of the map, splits only what its parts divide, and gives a row only of one pixel."""
    word, x = word_of(node), types[0].shape
    whole = len(x) in (2, 4) and x[0] == 1 and map_shape(x) == (word.Ci, word.Hi, word.Wi)
    return whole and problem(word) is None and not (FLAT(node) and (word.Ho, word.Wo) != (1, 1))


def _word_types(node: Node, _types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    word = word_of(node)
    return (TensorType((1, word.Co) if FLAT(node) else (1, word.Co, word.Ho, word.Wo), "int8"),)


def _by_the_word(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,), (y,) = inputs, _word_types(node, ())
    pixels = x.reshape(map_shape(x.shape)).transpose(1, 2, 0)
    return (rearranged(pixels[None], word_of(node)).transpose(0, 3, 1, 2).reshape(y.shape),)


def _word_onnx(node: Node, emit: OnnxEmitter) -> None:
    """A Gather that puts the elements into the word's order."""
    shapes = [emit.graph.shape(name) for name in (node.inputs[0], node.output)]
    places = np.arange(prod(shapes[0])).reshape(shapes[0])
    (order,) = _by_the_word(node, [places])
    flat = emit.step("Reshape", node.inputs[0], emit.integers("flat", (-1,)))
    emit.node("Gather", [flat, emit.constant(order, "order")], node.outputs)


def _pixel_onnx(node: Node, emit: OnnxEmitter) -> None:
    emit.node("Identity", [emit.constant(pixel(node), "pixel")], node.outputs)


def _pixel_types(_node: Node, _types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType((1, LANES, 1, 1), "int8"),)


OPERATORS: Operators = with_operators(
    OPS,
    Op(
        PIXEL,
        "A constant pixel.",
        (),
        (Parameter("y", INT8),),
        lambda node, _: (pixel(node),),
        (VALUE,),
        infer=_pixel_types,
        to_onnx=_pixel_onnx,
        origin="easynpu",
    ),
    Op(
        WORD_OP,
        "A map in another order: what one reshape word does.",
        (Parameter("x", INT8),),
        (Parameter("y", INT8),),
        _by_the_word,
        (*FIELDS, FLAT),
        (_consistent_word,),
        _word_types,
        _word_onnx,
        origin="easynpu",
    ),
)
"""All of npuc's operators, and EasyNPU's."""
