"""What EasyNPU's array can run: one function per constraint, whose docstring is the sentence that users read.

The supported-operators page and `npuc check` derive from the table here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from npuc.conditions.constraints import (
    Rewritten,
    Support,
    clips_at_zero,
    constant_weights,
    finite_constants,
    slope_per_channel,
    unknown,
    violation,
    whole_windows,
)
from npuc.conditions.host import quantised_forms
from npuc.errors import EncodingError, NpucError, Problem
from npuc.ir import Graph, Node
from npuc.ops.attributes import GROUP
from npuc.ops.movement import MOVEMENT, ONNX_MOVEMENT
from npuc.quantize.arithmetic.tables import TABLE_OPS
from npuc.quantize.scales.constraints import average_kernel
from npuc.storage.bits import encode
from npuc.targets.easynpu.layers.kernels import FIELD_CHANNELS, geometry, split_kernel
from npuc.targets.easynpu.layers.nodes import conv_mnemonic, map_shape
from npuc.targets.easynpu.layers.tiling import best_tile
from npuc.targets.easynpu.layers.windows import whole
from npuc.targets.easynpu.machine.isa import BY_MNEMONIC, Layer
from npuc.targets.easynpu.machine.memory import LANES, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import Followers, is_dense


def one_image(graph: Graph, node: Node) -> str | None:
    """The tensors are (1, C, H, W) or (1, C): the batch is 1."""
    shapes = [graph.shape(node.inputs[0]), graph.shape(node.output)]
    wrong = [shape for shape in shapes if len(shape) not in (2, 4) or shape[0] != 1]
    return f"the shape is {list(wrong[0])}" if wrong else None


def dense_or_depthwise(graph: Graph, node: Node) -> str | None:
    """The convolution has one group, or one group per channel."""
    group, channels = GROUP(node), graph.shape(node.inputs[0])[1]
    outputs = graph.shape(node.output)[1]
    return None if group == 1 or group == channels == outputs else f"{group} groups of {channels} channels"


def whole_or_repeated(graph: Graph, node: Node) -> str | None:
    """Both operands are computed at run time; one may repeat its only row or column, never its only channel."""
    constants = [name for name in node.inputs if name in graph.constants]
    if constants:
        return f"'{constants[0]}' is a constant"
    shapes = [graph.shape(name) for name in node.inputs]
    result = graph.shape(node.output)
    fits = result in shapes and all(
        len(shape) == len(result)
        and shape[1] == result[1]
        and all(extent in (1, full) for extent, full in zip(shape, result, strict=True))
        for shape in shapes
    )
    return None if fits else f"the shapes are {list(shapes[0])} and {list(shapes[1])}"


def slope_alike_or_per_channel(graph: Graph, node: Node) -> str | None:
    """The slope is a constant: one number, or one per channel."""
    slope = graph.constants.get(node.inputs[1])
    alike = slope is not None and (slope == slope.reshape(-1)[0]).all()
    return None if alike else slope_per_channel(graph, node)


BATCH = "bind the batch to 1 with --input-shape"
SIMPLIFY = "fold constants and batch normalisation before export, or change the layer"

ARRAY: Mapping[str, Support] = {
    "Conv": Support(
        "conv, dwconv (with ReLU)",
        (one_image, constant_weights, finite_constants, dense_or_depthwise, clips_at_zero),
        SIMPLIFY,
    ),
    "Gemm": Support("conv", (one_image, constant_weights, finite_constants, clips_at_zero), SIMPLIFY),
    "MaxPool": Support("maxpool", (one_image,), BATCH),
    "GlobalMaxPool": Support("maxpool", (one_image,), BATCH),
    "AveragePool": Support(
        "avgpool", (one_image, whole_windows), "set count_include_pad = 1, or drop the padding"
    ),
    "GlobalAveragePool": Support("avgpool", (one_image,), BATCH),
    "Add": Support("add", (one_image, whole_or_repeated, clips_at_zero), "give both operands the same channels"),
    "Mul": Support("mul", (one_image, whole_or_repeated), "give both operands the same channels"),
    "Relu": Support("relu", (one_image,), BATCH),
    **{op: Support("act", (one_image,), BATCH) for op in TABLE_OPS},
    "Clip": Support("relu (from 0), act", (one_image,), BATCH),
    "PRelu": Support(
        "prelu, act (one slope)",
        (one_image, slope_alike_or_per_channel, finite_constants),
        "share the slope between pixels",
    ),
}

REWRITTEN: Rewritten = {
    "ConvTranspose": ("conv", "The weights are constants, and the image grows at most 16 times each way."),
    "BatchNormalization": ("conv, dwconv", "The parameters are constants."),
    "Sub": ("add", "As of Add; the sign goes into weights."),
    "Max": ("maxpool, relu", "Two operands; at least one is computed at run time."),
    "Min": ("maxpool, relu", "Two operands; at least one is computed at run time."),
    "Resize": ("maxpool, conv", "Repeated pixels are copies, other interpolation is two products."),
    "MatMul": ("conv", "One factor is a constant."),
    "Pow": ("mul, act", "The exponent is 1, 2, 3, 4 or 0.5."),
    "ReduceMean": ("avgpool, conv", "Any axes."),
    "ReduceSum": ("dwconv, conv", "Any axes."),
    "ReduceMax": ("maxpool", "Any axes."),
    "ReduceMin": ("maxpool", "Any axes."),
    "Pad": ("dwconv", "Any mode; zeros before a convolution become its padding."),
    "Gather": ("conv", "The indices are constants; channels become weights, other axes slices."),
    "Expand": ("maxpool", "Copies."),
    **quantised_forms("conv, dwconv"),
}
"""What no pass could replace is refused."""

HOST: Mapping[str, str] = {
    "QuantizeLinear": "it converts an output of the network; in pairs with DequantizeLinear it gives scales",
    "DequantizeLinear": "it converts an input of the network; of weights it gives values",
    "Softmax": "the machine has no exponential and no division",
    "LogSoftmax": "the machine has no exponential and no logarithm",
    "ArgMax": "the machine has no index arithmetic",
    "LRN": "the machine has no power function",
    **dict.fromkeys(ONNX_MOVEMENT, "neither addresses nor a reshape word give this order of elements"),
}


def refusal(graph: Graph, node: Node, machine: Machine) -> Problem | None:
    """Why the array cannot run the node (a node of the optimised float graph), or None if it can."""
    row = ARRAY.get(node.op)
    if row is None:
        return unknown(node, (*ARRAY, *REWRITTEN, *HOST), REWRITTEN, "npuc operators --target easynpu")
    if broken := violation(graph, node, row.constraints, row.remedy):
        return broken
    where = {"node": node.source, "op": node.op}
    try:
        word = layer_word(graph, node)
        dense = word.operation is not None and word.operation.mnemonic == "conv"
        parts = [part.word for part in split_kernel(word, machine, dense=dense)]
        best_tile([replace(part, Zs=1) for part in parts], machine, Followers())
        for part in parts:
            encode(replace(part, Co=1, Zs=1, Ci=1, Ho=1, Wo=1, Hi=1, Wi=1))  # channels and maps are split
    except EncodingError as error:
        problem = error.problems[0]
        return Problem(
            "E301", problem.reason, limit=problem.limit, remedy="a smaller map or fewer channels", **where
        )
    except NpucError as error:
        problem = error.problems[0]
        return Problem(problem.code, problem.reason, limit=problem.limit, remedy=problem.remedy, **where)
    return None


def layer_word(graph: Graph, node: Node) -> Layer:
    """The layer word of a float node: its geometry, without tile or flags."""
    x, y = graph.shape(node.inputs[0]), graph.shape(node.output)
    held, computed = whole(graph, node.inputs[0]), whole(graph, node.output)
    match node.op:
        case "Conv":
            name = conv_mnemonic(GROUP(node), x[1], y[1])
            height, width = graph.shape(node.inputs[1])[2:]
            fields, _, _ = geometry(node, held, computed, held, (height, width))
            return Layer(opcode=BY_MNEMONIC[name].opcode, **fields)
        case "MaxPool" | "AveragePool":
            fields, _, _ = geometry(node, held, computed, held, average_kernel(graph, node))
            return Layer(opcode=BY_MNEMONIC["maxpool"].opcode, **fields)
        case "GlobalAveragePool" | "GlobalMaxPool":
            channels, height, width = map_shape(x)
            return Layer(
                opcode=BY_MNEMONIC["maxpool"].opcode,
                Hi=height, Wi=width, Hk=height, Wk=width, Ci=channels, Co=channels, Zs=groups(channels),
            )  # fmt: skip
        case _:
            channels, height, width = map_shape(y)
            return Layer(
                opcode=BY_MNEMONIC["relu"].opcode,
                Hi=height, Wi=width, Ho=height, Wo=width, Ci=channels, Co=channels, Zs=groups(channels),
            )  # fmt: skip


def node_cycles(graph: Graph, node: Node, machine: Machine) -> int | None:
    """Cycles of a node's words with its whole map in the DTCM; None for a node that the array cannot run as it is.

    Data movement counts as address arithmetic: 0.
    """
    if node.op in MOVEMENT:
        return 0
    if node.op == "Gemm" or refusal(graph, node, machine) is not None:
        return None
    word = layer_word(graph, node)
    dense = is_dense(word)
    parts = [part.word for part in split_kernel(word, machine, dense=dense)]
    most = min(FIELD_CHANNELS // LANES, machine.weight_pad_entries, machine.psum_entries) if dense else word.Zs
    total = 0
    for first in range(0, word.Zs, most):
        Zs = min(most, word.Zs - first)
        Co = min(word.Co - first * LANES, Zs * LANES)
        chunk = [replace(part, Co=Co, Zs=Zs, **({} if dense else {"Ci": Co})) for part in parts]
        total += best_tile(chunk, machine, Followers())[1].cycles
    return total
