"""The nodes of integer graphs: EasyNPU's own operators, views of maps, what the array runs, what it fuses.

Pure address arithmetic (views of other maps, or maps that consist of views) takes no word. Addresses have word
granularity: channel offsets are multiples of 16.

Source: easynpu, Layer fusion: batch normalisation, activations and elementwise operations follow in the same pass
over a tile, in any order; pools do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import OPS, Op, Operators, Parameter, with_operators
from npuc.ops.attributes import (
    AVERAGE,
    AXES,
    AXIS,
    BLOCK_MODE,
    BLOCKSIZE,
    FUSED_INPUT,
    GROUP,
    STARTS,
    STEPS,
    Attribute,
)
from npuc.ops.windows import window_of
from npuc.storage.bits import places
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, SLOPE_WORDS, TABLE_WORDS
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import problem, rearrange

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
    return (rearrange(pixels[None], word_of(node)).transpose(0, 3, 1, 2).reshape(y.shape),)


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


Shape = tuple[int, int, int]


def map_shape(shape: Sequence[int]) -> Shape:
    """(C, H, W) of a tensor (1, C, H, W) or (1, C)."""
    channels, height, width = (*shape[1:], 1, 1)[:3]
    return channels, height, width


def is_alias(graph: Graph, node: Node) -> bool:
    """Whether an int8 Reshape moves no word: equal shapes, or (1, C, 1, 1) and (1, C)."""
    if node.op != "Reshape" or graph.tensors[node.output].dtype != "int8":
        return False
    before, after = graph.shape(node.inputs[0]), graph.shape(node.output)
    vectors = all(shape[:1] == (1,) and np.prod(shape[2:]) == 1 for shape in (before, after))
    return before == after or (vectors and before[:2] == after[:2])


def is_part(graph: Graph, node: Node) -> bool:
    """Whether a node's results are views of its input: Slice, Split or an alias."""
    return node.op in ("Slice", "Split") or is_alias(graph, node)


def concat_offsets(graph: Graph, node: Node) -> list[int] | None:
    """The offset of each operand along the axis; None for unaligned channels, axis 0 or under 4 dimensions."""
    axis = AXIS(node)
    extents = [graph.shape(name)[axis] for name in node.inputs]
    offsets = [sum(extents[:position]) for position in range(len(extents))]
    if len(graph.shape(node.output)) != 4 or axis == 0:
        return None
    if axis == 1 and any(offset % LANES for offset in offsets):
        return None
    return offsets


def is_window(graph: Graph, node: Node) -> bool:
    """Whether a Slice or Split takes whole DTCM words: unit steps, channel offsets that are multiples of 16."""
    if node.op not in ("Slice", "Split") or len(graph.shape(node.inputs[0])) != 4:
        return False
    if node.op == "Split":
        offsets = split_offsets(graph, node)
        return AXIS(node) in (2, 3) or all(offset % LANES == 0 for offset in offsets)
    pairs = dict(zip(AXES(node), STARTS(node), strict=True))
    return all(step == 1 for step in STEPS(node)) and 0 not in pairs and pairs.get(1, 0) % LANES == 0


def split_offsets(graph: Graph, node: Node) -> list[int]:
    """Where each output of a Split begins along its axis."""
    extents = [graph.shape(name)[AXIS(node)] for name in node.outputs]
    return [sum(extents[:position]) for position in range(len(extents))]


def interleaved(graph: Graph, node: Node) -> Node | None:
    """The Concat that a DepthToSpace interleaves, one operand per phase; None if address arithmetic cannot do it.

    Phase (i, j) for block size s is operand i * s + j; it fills every s-th row and column, starting at (i, j).
    """
    if node.op != "DepthToSpace" or BLOCK_MODE(node) != "DCR":
        return None
    concat = graph.producers.get(node.inputs[0])
    if concat is None or concat.op != "Concat" or AXIS(concat) != 1:
        return None
    phases = len(concat.inputs) == BLOCKSIZE(node) ** 2
    equal = len({graph.shape(name) for name in concat.inputs}) == 1
    return concat if phases and equal and graph.only_reader(concat.output) is node else None


def moved_axes(graph: Graph, node: Node) -> set[int]:
    """The axes of the map (0 channels, 1 rows, 2 columns) along which a node moves elements."""
    if node.op in ("Concat", "Slice", "Split"):
        inputs, outputs = (
            [map_shape(graph.shape(name)) for name in names] for names in (node.inputs, node.outputs)
        )
        return {axis for axis in range(3) if any(x[axis] != y[axis] for x in inputs for y in outputs)}
    if interleaved(graph, node) is not None:
        return {0}
    moves = node.op in ("Reshape", "DepthToSpace", "IntReshape") and not is_alias(graph, node)
    return {0, 1, 2} if moves else set()


POINTWISE = ("IntRelu", "IntTable", "IntPRelu")
"""Pointwise functions, which can be fused behind any result but a pool's."""
ARRAY_OPS = ("IntConv", "IntAdd", "IntSum", "IntMul", "MaxPool", WORD_OP, *POINTWISE)


def runs_on_array(graph: Graph, node: Node) -> bool:
    """Whether the PE array executes a node of the integer graph, or address arithmetic replaces it."""
    if graph.tensors[node.output].dtype != "int8":
        return False
    if node.op == "Concat":
        return len(graph.shape(node.output)) == 4 and AXIS(node) > 0
    if node.op == "DepthToSpace":
        return interleaved(graph, node) is not None
    return node.op in ARRAY_OPS or is_alias(graph, node) or is_window(graph, node)


def conv_mnemonic(group: int, channels: int, outputs: int) -> str:
    """The mnemonic: dwconv where every channel is its own group, else conv."""
    return "dwconv" if group == channels == outputs and group > 1 else "conv"


def is_batch_norm(graph: Graph, node: Node) -> bool:
    """Whether an integer convolution is w * x + b per channel: depthwise, 1x1, stride 1, no padding."""
    if node.op != "IntConv" or AVERAGE(node):
        return False
    shape, outputs = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])[0]
    if conv_mnemonic(GROUP(node), shape[1], outputs) != "dwconv":
        return False
    window = window_of(node, (1, 1))
    taps = graph.shape(node.inputs[1])[2:]
    return taps == (1, 1) and window.strides == (1, 1) and not any((*window.begins, *window.ends))


def fused_behind(graph: Graph, nodes: Sequence[Node], machine: Machine) -> Mapping[Node, Node]:
    """For each fused node, the node that it is fused behind.

    A chain ends where the bias and scale pads are full.
    """
    present = set(nodes)
    found: dict[Node, Node] = {}
    entries = {node: _pad_entries(node) for node in nodes}
    for node in nodes:
        producer = graph.producers.get(_continued_input(graph, node))
        if producer is None or producer not in present or AVERAGE(producer):
            continue
        adds = node.op == "IntAdd"
        heads = ("IntConv",) if adds else ("IntConv", "IntAdd", "IntSum", "IntMul", *POINTWISE)
        same = graph.shape(producer.output) == graph.shape(node.output)
        if adds and producer in found:  # a chain has one operand, which an earlier sum may already use
            continue
        held = entries[producer] + entries[node]
        if held > machine.parameter_pad_entries:
            continue
        if producer.op in heads and same and graph.only_reader(producer.output) is node:
            found[node] = producer
            entries[node] = held
    return found


def _pad_entries(node: Node) -> int:
    """Entries of the bias and scale pads that a node takes per 16 channels; a table takes one per segment."""
    return LANES if node.op == "IntTable" else int(group_words(node) > 0)


def _continued_input(graph: Graph, node: Node) -> str:
    """The input whose producer the node may be fused behind; empty if there is none."""
    index = FUSED_INPUT(node)
    if node.op == "IntAdd" and index is not None and node.inputs[0] != node.inputs[1]:
        return node.inputs[index]
    return node.inputs[0] if node.op in POINTWISE or is_batch_norm(graph, node) else ""


def group_words(node: Node) -> int:
    """Weight words per 16 channels of a node that is fused behind another."""
    words = {
        "IntAdd": BS_WORDS,
        "IntMul": BS_WORDS,
        "IntSum": 2 * (BS_WORDS + 1),
        "IntPRelu": SLOPE_WORDS,
        "IntConv": BS_WORDS + 1,
    }
    return words.get(node.op, 0)


def table_words(chain: Sequence[Node]) -> int:
    """Weight words of the tables of a chain, for any number of channels."""
    return TABLE_WORDS * sum(node.op == "IntTable" for node in chain)
