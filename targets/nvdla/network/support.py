"""Operator support of NVDLA: one function per constraint, whose docstring is the sentence that users see.

The supported-operators page and `npuc check` derive from the table here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from npuc.conditions.constraints import (
    SPLIT,
    Constraint,
    Rewritten,
    Support,
    clips_at_zero,
    constant_weights,
    exceeding,
    finite_constants,
    refuse,
    slope_per_channel,
    unknown,
    violation,
    whole_windows,
)
from npuc.conditions.host import BORDER, quantised_forms
from npuc.errors import Problem
from npuc.ir import Graph, Node
from npuc.ops.attributes import AXIS, LRN_ALPHA, LRN_BETA, LRN_BIAS, MAX, MIN, SIZE
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.ops.windows import window_of
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.scales.constraints import average_kernel
from npuc.quantize.scales.model_scales import only_of_inputs
from npuc.targets.nvdla.arithmetic.normalisation import SIZES
from npuc.targets.nvdla.machine.parameters import (
    MOST_DILATION,
    MOST_EXTENT,
    MOST_KERNEL,
    MOST_STRIDE,
    MOST_WINDOW_PADDING,
    Machine,
)
from npuc.targets.nvdla.quantisation import MOST_POOL
from npuc.targets.nvdla.quantisation.tables import INTERPOLATED


def one_image(graph: Graph, node: Node) -> str | None:
    """The tensors are (1, C, H, W): the batch is 1."""
    shapes = [graph.shape(name) for name in (node.inputs[0], node.output)]
    if node.inputs[0] in graph.constants:
        shapes = shapes[1:]
    wrong = [shape for shape in shapes if len(shape) != 4 or shape[0] != 1]
    return f"the shape is {list(wrong[0])}" if wrong else None


def map_fields(graph: Graph, node: Node) -> str | None:
    """Maps have up to 8192 channels, rows and columns."""
    found = (exceeding(graph.shape(name), (MOST_EXTENT,) * 3) for name in (node.inputs[0], node.output))
    return next(filter(None, found), None)


def strides(graph: Graph, node: Node) -> str | None:
    """Strides up to 8."""
    found = window_of(node, graph.shape(node.inputs[1])[2:]).strides
    return f"the stride is {list(found)}" if max(found) > MOST_STRIDE else None


def strides_or_batches(graph: Graph, node: Node) -> str | None:
    """Strides up to 8; down up to 32 where windows cover one map after another, as a batch has them."""
    window = window_of(node, graph.shape(node.inputs[1])[2:])
    (height, width), (rows, columns) = graph.shape(node.inputs[0])[2:], graph.shape(node.output)[2:]
    covers = window.reach == (window.strides[0], width) and (height, columns) == (rows * window.strides[0], 1)
    apart = covers and window.strides[1] <= MOST_STRIDE and not any((*window.begins, *window.ends))
    return None if apart else strides(graph, node)


def convolution_fields(graph: Graph, node: Node) -> str | None:
    """Kernels up to 32x32, dilations up to 32, padding up to 31."""
    kernel = graph.shape(node.inputs[1])[2:]
    window = window_of(node, kernel)
    for what, values, most in (
        ("the kernel", kernel, MOST_KERNEL),
        ("the dilation", window.dilations, MOST_DILATION),
        ("the padding", (*window.begins, *window.ends), MOST_WINDOW_PADDING),
    ):
        if max(values) > most:
            return f"{what} is {list(values)}"
    return None


def pooling_fields(graph: Graph, node: Node) -> str | None:
    """Windows up to 8x8 without dilation, strides up to 8, padding up to 7."""
    kernel = average_kernel(graph, node)
    if max(kernel) > MOST_POOL:
        return f"the window is {list(kernel)}"
    window = window_of(node, kernel)
    if max(window.dilations) > 1:
        return f"the dilation is {list(window.dilations)}"
    return f"the stride is {list(window.strides)}" if max(window.strides) > MOST_STRIDE else None


def averaging_fields(graph: Graph, node: Node) -> str | None:
    """Averages have windows up to 32x32 (convolutions) without dilation, strides up to 8, padding up to 7."""
    kernel = average_kernel(graph, node)
    if max(kernel) > MOST_KERNEL:
        return f"the window is {list(kernel)}"
    if node.op.startswith("Global"):
        return None
    window = window_of(node, kernel)
    if max(window.dilations) > 1:
        return f"the dilation is {list(window.dilations)}"
    if max(window.strides) > MOST_STRIDE or max(window.begins) > 7:
        return f"strides {list(window.strides)}, padding {list(window.begins)}"
    return None


def whole_or_per_channel(graph: Graph, node: Node) -> str | None:
    """One operand has the shape of the result; the other the same, one number per channel, or one number."""
    result = graph.shape(node.output)
    computed = [name for name in node.inputs if name not in graph.constants]
    if not computed:
        return "both operands are constants"
    full = [name for name in computed if graph.shape(name) == result]
    if not full or (node.op == "Sub" and len(computed) == 2 and graph.shape(node.inputs[1]) != result):
        return f"the shapes are {[list(graph.shape(name)) for name in node.inputs]}"
    others = [name for name in node.inputs if name != full[0]] or [full[0]]
    for name in others:
        shape = graph.shape(name)
        shape = (1,) * (4 - len(shape)) + shape
        per_channel = shape == (1, result[1], 1, 1)
        number = all(extent == 1 for extent in shape)
        if shape != result and not per_channel and not (number and name in graph.constants):
            return f"the shapes are {[list(graph.shape(each)) for each in node.inputs]}"
    return None


def positive_upper_limit(_graph: Graph, node: Node) -> str | None:
    """The upper limit is positive, and the lower limit below it but not below its negative."""
    low, high = MIN(node), MAX(node)
    return None if low > -inf and -high <= low < high else f"it clips to {low}..{high}"


def few_channels(_graph: Graph, node: Node) -> str | None:
    """It adds squares of 3, 5, 7 or 9 channels; the bias is positive, and beta not negative."""
    size, bias, beta = SIZE(node), LRN_BIAS(node), LRN_BETA(node)
    falls = bias > 0 and beta >= 0 and LRN_ALPHA(node) >= 0
    return None if size in SIZES and falls else f"size {size}, bias {bias}, beta {beta}"


def interleaving_fields(graph: Graph, node: Node) -> str | None:
    """The maps are (1, C, H, W), with up to 8192 channels, rows and columns."""
    shape = graph.shape(node.output)
    taken = len(shape) == 4 and shape[0] == 1 and AXIS(node) > 1 and max(shape) <= MOST_EXTENT
    return None if taken else f"the shape is {list(shape)}"


BATCH = "bind the batch to 1 with --input-shape"
REMEDIES: Mapping[Constraint, str] = {
    one_image: BATCH,
    map_fields: SPLIT,
    convolution_fields: "a smaller kernel, padding or dilation",
    strides: "a smaller stride",
    strides_or_batches: "a smaller stride",
    whole_windows: "set count_include_pad = 1",
}
"""Remedies of constraints that mean the same for every operator."""
SIMPLIFY = "fold constants and batch normalisation before export, or change the layer"
AVERAGING = "PDP, CONV + SDP"
OF_TWO = (one_image, map_fields, whole_or_per_channel, finite_constants, clips_at_zero)
SHAPES = "give both operands the same shape, or one number per channel to one of them"

ARRAY: Mapping[str, Support] = {
    "Conv": Support(
        "CONV + SDP",
        (one_image, map_fields, constant_weights, finite_constants, convolution_fields, strides, clips_at_zero),
        SIMPLIFY,
    ),
    "MaxPool": Support("PDP", (one_image, map_fields, pooling_fields), "split the window"),
    "GlobalMaxPool": Support("PDP", (one_image, map_fields, pooling_fields), "split the window"),
    **{op: Support(AVERAGING, (one_image, map_fields, averaging_fields, whole_windows), "pool in two steps")
       for op in ("AveragePool", "GlobalAveragePool")},
    **{op: Support("SDP (X1, X2)", OF_TWO, SHAPES)
       for op in ("Add", "Sub", "Mul", "Max", "Min")},
    **{op: Support("SDP (X1, X2)", (one_image, map_fields), BATCH)
       for op in ("Relu", "LeakyRelu", "Abs", "Neg", "HardSigmoid")},
    "LRN": Support("CDP", (one_image, map_fields, few_channels), "let the host compute it"),
    "PRelu": Support(
        "SDP (X1, X2)",
        (one_image, map_fields, slope_per_channel, finite_constants),
        "share the slope between pixels",
    ),
    "Clip": Support("SDP (X1, X2)", (one_image, map_fields, positive_upper_limit), "limit it by Min and Max"),
}  # fmt: skip

LUT_OPS = (
    "Sigmoid", "Tanh", "HardSwish", "Swish", "Gelu", "Mish", "Softplus", "Softsign", "Elu", "Exp", "Erf", "Sqrt",
)  # fmt: skip
BATCHED = replace(
    ARRAY["Conv"],
    constraints=tuple(strides_or_batches if each is strides else each for each in ARRAY["Conv"].constraints),
)
"""A convolution in configurations with multi-batch mode."""
LUT = Support("SDP (table)", (one_image, map_fields), BATCH)
"""Functions of one element, in configurations with tables: one entry per int8 value, or interpolation."""
COARSE = "tables that interpolate give it too coarsely beyond int8"

OWN: Mapping[str, Support] = {"Interleave": Support("SDP", (interleaving_fields,), BATCH)}
"""Operators that passes introduce and ONNX does not have."""

ENLARGED = "By up to 256 times; the maps are (1, C, H, W), with up to 8192 channels, rows and columns."
REWRITTEN: Rewritten = {
    "Gemm": ("CONV + SDP", "One factor is a constant: a kernel as large as the map."),
    "MatMul": ("CONV + SDP", "One factor is a constant."),
    "Pow": ("SDP", "The exponent is 1, 2, 3 or 4, or 0.5 where a table gives the square root."),
    "ConvTranspose": (
        "CONV + SDP",
        "The weights are constants, and the image grows at most 256 times; SDP interleaves the columns.",
    ),
    "DepthToSpace": ("CONV + SDP", f"{ENLARGED} Any mode."),
    "SpaceToDepth": ("CONV + SDP", "Within the convolution that reads it, or by convolutions with strides."),
    "Resize": (
        "SDP, CONV + SDP",
        f"By p / q along rows and columns, in every mode, with q up to 8 and up to 64 phases. {ENLARGED}",
    ),
    "BatchNormalization": ("CONV + SDP", "The parameters are constants."),
    "ReduceMean": ("PDP, CONV + SDP", "Any axes."),
    "ReduceSum": ("CONV + SDP", "Any axes."),
    "ReduceMax": ("PDP", "Any axes."),
    "ReduceMin": ("PDP", "Any axes."),
    "Expand": ("SDP (X1, X2)", "Copies, along axes of up to 256 elements."),
    "Pad": ("CONV + SDP", "Any mode; zeros before a convolution become its padding."),
    "Gather": ("CONV + SDP", "The indices are constants; channels become weights, other axes slices."),
    **quantised_forms("CONV + SDP"),
}
"""What no pass could replace is refused."""

HOST: Mapping[str, str] = {
    "QuantizeLinear": "it converts an output of the network; in pairs with DequantizeLinear it gives scales",
    "DequantizeLinear": "it converts an input of the network; of weights it gives values",
    "Softmax": "NVDLA has no division; its own runtime emulates it too",
    "LogSoftmax": "NVDLA has no logarithm",
    "ArgMax": "NVDLA has no index arithmetic",
    "LRN": "CDP adds squares of 3, 5, 7 or 9 channels",
    "Resize": "NVDLA has no interpolation by such factors",
    **dict.fromkeys(LUT_OPS, "the configuration has no look-up table in SDP"),
    **dict.fromkeys(MOVEMENT, "surfaces do not give this order of elements"),
}


def table_ops(machine: Machine, precision: str) -> tuple[str, ...]:
    """The functions that EW's tables can compute: all with one entry per input, otherwise those that interpolate
    well.
    """
    if not machine.sdp_lut:
        return ()
    return LUT_OPS if precision == "int8" else tuple(INTERPOLATED)


def host(machine: Machine, precision: str) -> Mapping[str, str]:
    """The operators that the host may run, with reasons."""
    if not machine.sdp_lut:
        return HOST
    return {op: COARSE if op in LUT_OPS and precision != "int8" else why for op, why in HOST.items()}


def precisions(op: str, machine: Machine) -> tuple[str, ...]:
    """The precisions in which the configuration runs an operator."""
    return tuple(each for each in machine.precisions if row_of(op, machine, each) is not None)


def array(machine: Machine) -> Mapping[str, Support]:
    """The support of the configuration's operators, without those of tables."""
    return {**ARRAY, "Conv": BATCHED} if machine.max_batches > 1 else ARRAY


def row_of(op: str, machine: Machine, precision: str) -> Support | None:
    """The support of an operator in a configuration and precision, or None."""
    return LUT if op in table_ops(machine, precision) else array(machine).get(op) or OWN.get(op)


def quantised_already(graph: Graph, precision: str) -> Problem | None:
    """Why a model that already rounds to int8 cannot be compiled in fp16 or int16; None for a float model.

    Bytes of an input, such as a frame, are exact in 16 bits; in int16 where only convolutions read them.
    """
    node = next((each for each in graph.nodes if each.op in (*CONVERSIONS, *BORDER)), None)
    readers = {each for node in graph.nodes if node.op in BORDER for each in graph.readers[node.output]}
    plain = precision == "fp16" or {each.op for each in readers} <= {"Conv"}
    if node is None or (plain and only_of_inputs(graph)):
        return None
    reason, remedy = f"the model is quantised already; {precision} would not round here", "compile it in int8"
    return refuse(node, reason, tensor=node.inputs[0], remedy=remedy)


def refusal(graph: Graph, node: Node, machine: Machine, precision: str) -> Problem | None:
    """Why NVDLA cannot run the node (a node of the optimised float graph), or None if it can."""
    row = row_of(node.op, machine, precision)
    if row is None:
        known = (*ARRAY, *REWRITTEN, *HOST)
        return unknown(node, known, REWRITTEN, f"npuc operators --target {machine.name}")
    constraints = () if node.op == "Clip" and is_relu(node) else row.constraints
    return violation(graph, node, constraints, row.remedy, REMEDIES)
