"""Operators that BM1684 runs: one function per constraint, whose docstring users read.

The supported-operators page and `npuc check` derive from this table. Sources of the limits: the reference of the
calls, and the assertions of the vendor's chip model.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from npuc.conditions.constraints import (
    SPLIT,
    Support,
    constant_weights,
    exceeding,
    finite_constants,
    slope_per_channel,
    unknown,
    violation,
)
from npuc.errors import Problem
from npuc.ir import Graph, Node
from npuc.ops import has_input
from npuc.ops.attributes import AXES, AXIS, DILATIONS, KERNEL_SHAPE, LRN_BETA, SCALES
from npuc.ops.windows import window_of
from npuc.targets.bm1684.lowering.context import SEE_OPERATORS
from npuc.targets.bm1684.lowering.functions import POWERS, RECIPES
from npuc.targets.bm1684.lowering.pools import rows_of
from npuc.targets.bm1684.lowering.rearrangements import runs

MOST_PADDING, MOST_STRIDE, MOST_DILATION, MOST_EXTENT, MOST_CHANNELS = 15, 15, 16, 2047, 4095
MOST_COPIES, MOST_ROWS = 4096, 65_535
MOST_MAP = (MOST_CHANNELS, *(MOST_EXTENT - 2 * MOST_PADDING,) * 2)
"""The most channels, rows and columns of an image, with room for padding."""
MOST_WINDOW = 112
"""The most rows and columns of a window verified in 8 bits, for pooling and depthwise convolution."""


def constant_parameters(graph: Graph, node: Node) -> str | None:
    """The parameters are constants."""
    return constant_weights(graph, node)


def images(graph: Graph, node: Node) -> str | None:
    """The tensors are (N, C, H, W)."""
    shape = graph.shape(node.inputs[0])
    return None if len(shape) == 4 else f"the shape is {list(shape)}"


def within_windows(graph: Graph, node: Node) -> str | None:
    """Padding is at most 15, the stride at most 15, the dilation at most 16."""
    kernel = graph.shape(node.inputs[1])[2:] if has_input(node, 1) else (KERNEL_SHAPE(node) or (1, 1))
    window = window_of(node, kernel)
    if max(*window.begins, *window.ends) > MOST_PADDING:
        return f"pads are {[*window.begins, *window.ends]}"
    if max(window.strides) > MOST_STRIDE or max(window.dilations) > MOST_DILATION:
        return f"strides are {list(window.strides)}, dilations {list(window.dilations)}"
    return None


def within_extents(graph: Graph, node: Node) -> str | None:
    """Images have at most 2,047 rows and columns (padding included) and 4,095 channels."""
    found = (exceeding(graph.shape(name), MOST_MAP) for name in (node.inputs[0], node.output))
    return next(filter(None, found), None)


def within_sides(graph: Graph, node: Node) -> str | None:
    """Images have at most 2,017 rows and columns."""
    found = (exceeding(graph.shape(name)[2:], MOST_MAP) for name in (node.inputs[0], node.output))
    return next(filter(None, found), None)


def not_dilated(_graph: Graph, node: Node) -> str | None:
    """The window is not dilated."""
    dilations = DILATIONS(node) or (1,)
    return None if max(dilations) == 1 else f"dilations are {list(dilations)}"


def matrices(graph: Graph, node: Node) -> str | None:
    """The factors are matrices, or batches of at most 4,096 matrices; the right one has at most 65,535 rows."""
    left, right = (graph.shape(name) for name in node.inputs[:2])
    result = graph.shape(node.output)
    fits = min(len(left), len(right)) >= 2 and right[-2] <= MOST_ROWS and 0 < prod(result[:-1]) <= MOST_ROWS
    constant = node.inputs[1] in graph.constants and max(right[:-2], default=1) == 1
    fits = fits and (constant or prod(result[:-2]) <= MOST_COPIES)
    return None if fits else f"the shapes are {list(left)} and {list(right)}"


def bias_per_column(graph: Graph, node: Node) -> str | None:
    """The bias has one number per column, or one."""
    if not has_input(node, 2):
        return None
    shape, columns = graph.shape(node.inputs[2]), graph.shape(node.output)[-1]
    size = graph.tensors[node.inputs[2]].size
    return None if size in (1, columns) else f"the bias has shape {list(shape)}"


def floats(graph: Graph, node: Node) -> str | None:
    """The tensors are float32; what only moves elements has integers of 8 bits, too."""
    allowed = ("float32", "int8", "uint8") if node.op in OF_INTEGERS else ("float32",)
    data = node.inputs[:1] if node.op == "Gather" else node.inputs
    wrong = [graph.tensors[name].dtype for name in (*data, *node.outputs) if name]
    wrong = [dtype for dtype in wrong if dtype not in allowed]
    return f"the element type is {wrong[0]}" if wrong else None


def elements(graph: Graph, node: Node) -> str | None:
    """Every tensor has elements."""
    empty = [name for name in (*node.inputs, *node.outputs) if name and not graph.tensors[name].size]
    return f"'{empty[0]}' is {list(graph.shape(empty[0]))}" if empty else None


MOVES = (
    "Concat", "Split", "Slice", "Gather", "Pad", "Reshape", "Identity", "Expand", "Transpose", "DepthToSpace",
    "SpaceToDepth",
)  # fmt: skip
OF_INTEGERS = (*MOVES, "MaxPool", "QuantizeLinear", "DequantizeLinear")
"""Operators on 8-bit integers, which are stored as fp32 numbers without loss."""


def one_scale(graph: Graph, node: Node) -> str | None:
    """Scale and zero point are constants, one of each."""
    wrong = [name for name in node.inputs[1:] if name and name not in graph.constants]
    if wrong:
        return f"'{wrong[0]}' is computed at run time"
    wrong = [name for name in node.inputs[1:] if name and graph.constants[name].size != 1]
    return f"'{wrong[0]}' has shape {list(graph.shape(wrong[0]))}" if wrong else None


def rows_and_columns(graph: Graph, node: Node) -> str | None:
    """Rows and columns of images are resized, or elements of all axes repeated."""
    shape, result = graph.shape(node.inputs[0]), graph.shape(node.output)
    fits = len(shape) == 4 and shape[:2] == result[:2] and SCALES(node)[:2] == (1.0, 1.0)
    return None if fits else f"{list(shape)} to {list(result)}"


def short_vectors(graph: Graph, node: Node) -> str | None:
    """Vectors have at most 2,047 elements, or as many as rows and columns of at most 2,047."""
    shape = graph.shape(node.inputs[0])
    axes = AXES(node) if node.op.startswith("Reduce") else (AXIS(node),)
    length = prod(shape[axis] for axis in axes)
    return None if rows_of(length) else f"vectors have {length} elements"


def small_images(graph: Graph, node: Node) -> str | None:
    """Images have at most 2,047 rows and columns, of any number of dimensions."""
    shape = graph.shape(node.inputs[0])
    fits = len(shape) > 2 and max(prod(shape[2:-1]), shape[-1]) <= MOST_EXTENT and shape[1] <= MOST_CHANNELS
    return None if fits else f"the shape is {list(shape)}"


def known_exponent(graph: Graph, node: Node) -> str | None:
    """The exponent is a constant: -2, -1, -0.5, 0.5, 1, 2, 3 or 4."""
    exponent = graph.constants.get(node.inputs[1])
    if exponent is None or exponent.size != 1 or graph.shape(node.inputs[0]) != graph.shape(node.output):
        return f"'{node.inputs[1]}' is no constant number"
    return None if float(exponent.flat[0]) in POWERS else f"the exponent is {float(exponent.flat[0])}"


def constant_indices(graph: Graph, node: Node) -> str | None:
    """The indices are constants that need at most 4,096 copies."""
    indices = graph.constants.get(node.inputs[1])
    if indices is None:
        return f"'{node.inputs[1]}' is computed at run time"
    extent = graph.shape(node.inputs[0])[AXIS(node)]
    count = sum(1 for _ in runs((indices.reshape(-1) % max(extent, 1)).tolist()))
    return None if 0 < count <= MOST_COPIES else f"{count} copies"


def known_power(_graph: Graph, node: Node) -> str | None:
    """beta is 0.5, 0.75 or 1."""
    beta = LRN_BETA(node)
    return None if beta in (0.5, 0.75, 1.0) else f"beta is {beta}"


def padding_within_kernel(graph: Graph, node: Node) -> str | None:
    """The padding is smaller than the kernel, which spans at most 16 elements each way."""
    window = window_of(node, graph.shape(node.inputs[1])[2:])
    rest = [reach - 1 - begin for reach, begin in zip(window.reach, window.begins, strict=True)]
    return None if min(rest) >= 0 and max(window.reach) <= MOST_PADDING + 1 else f"pads are {list(window.begins)}"


WINDOWS = (images, within_windows, within_extents)
OPERATORS: Mapping[str, Support] = {
    "Conv": Support("conv2d, depthwise2d", (constant_weights, *WINDOWS)),
    "ConvTranspose": Support(
        "32bit_set_C, 32bit_cpy, conv2d", (constant_weights, images, padding_within_kernel, within_extents)
    ),
    "Gemm": Support("matmul", (constant_weights, bias_per_column)),
    "MatMul": Support("matmul", (matrices,)),
    "MaxPool": Support("max_pool2d", (*WINDOWS, not_dilated)),
    "AveragePool": Support("avg_pool2d, mul where padding does not count", (*WINDOWS, not_dilated)),
    "GlobalMaxPool": Support("max_pool2d", (images, within_extents)),
    "GlobalAveragePool": Support("avg_pool2d", (images, within_extents)),
    "BatchNormalization": Support("scale_bias, or folded into a convolution", (constant_parameters,)),
    "LRN": Support("mul, conv2d, sqrt, div", (images, known_power)),
    "InstanceNormalization": Support(
        "avg_pool2d, sub, mul, sqrt, div, scale_bias", (constant_parameters, small_images)
    ),
    "Softmax": Support("max_pool2d, sub, exp, avg_pool2d, div", (short_vectors,)),
    **{op: Support("avg_pool2d, mul_C", (short_vectors,)) for op in ("ReduceMean", "ReduceSum")},
    **{op: Support("max_pool2d, neg", (short_vectors,)) for op in ("ReduceMax", "ReduceMin")},
    "Pow": Support("mul, sqrt, C_div", (known_exponent,)),
    "Gather": Support("GDMA", (constant_indices,)),
    "PRelu": Support("scale, max; relu, min_C, add", (slope_per_channel, finite_constants)),
    **{op: Support(f"{call}, {call}_C", ()) for op, call in (("Mul", "mul"), ("Max", "max"), ("Min", "min"))},
    "Add": Support("add, add_C, conv2d (result_add)", ()),
    "Sub": Support("sub, sub_C, C_sub", ()),
    "Div": Support("div, div_C, C_div", ()),
    **{op: Support("calls of one operand", ()) for op in RECIPES},
    "QuantizeLinear": Support("div_C, max_C, min_C, add_C, sub_C", (one_scale,)),
    "DequantizeLinear": Support("sub_C, mul_C", (one_scale,)),
    "Concat": Support("nothing along channels; GDMA", ()),
    "Split": Support("nothing along channels; GDMA", ()),
    "Slice": Support("nothing along channels; GDMA", ()),
    "Pad": Support("32bit_set_C, 32bit_cpy; GDMA", ()),
    "Resize": Support("32bit_cpy; mul_C, mac_C", (rows_and_columns,)),
    "Reshape": Support("nothing, or GDMA", ()),
    **{op: Support("nothing", ()) for op in ("Identity", "Rescale")},
    **{op: Support("GDMA", ()) for op in ("Expand", "Transpose", "DepthToSpace", "SpaceToDepth")},
}


ANOTHER_FORM = "another form of the layer (npuc operators --target bm1684)"


def refusal(graph: Graph, node: Node) -> Problem | None:
    """Why the machine cannot run the node; None if it can."""
    row = OPERATORS.get(node.op)
    if row is None:
        return unknown(node, OPERATORS, {}, SEE_OPERATORS)
    return violation(graph, node, (floats, elements, *row.constraints), ANOTHER_FORM, {within_extents: SPLIT})


HOST: Mapping[str, str] = {
    "Softmax": "its sum of exponentials exceeds 8 bits",
    "LogSoftmax": "its sum of exponentials exceeds 8 bits",
    "ArgMax": "the machine has no index arithmetic",
}
"""Operators that the host computes at the end of an int8 network, with the reasons."""
