"""The passes of fp16: numbers are not scaled, and SDP computes in fp32.

Tensors keep their names: on the host they are float32, converted when NVDLA reads or writes them.

Source: in-memory formats, FP16 Supporting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import attributes
from npuc.ops.attributes import GROUP, HARD_ALPHA, HARD_BETA
from npuc.ops.windows import window_of
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.scales.constraints import average_kernel, tensors_of
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.nvdla.arithmetic.integer import (
    TRANSFORM_GAIN,
    SdpStage,
    constant_positions,
    strides_of,
    transform_weights,
)
from npuc.targets.nvdla.formats.precision import FP16_MOST, bits_of_fp17
from npuc.targets.nvdla.quantisation.builder import (
    COMPARISONS,
    FEW,
    MAX,
    MIN,
    MOST_POOL,
    SUM,
    PassBuilder,
    PassDraft,
    explicit_window,
    per_channel,
    relu,
    slopes,
)
from npuc.targets.nvdla.quantisation.constraints import upper_limit
from npuc.targets.nvdla.quantisation.rounding import (
    UNKNOWN,
    Moments,
    half,
    half_factors,
    least_places,
    round_weights,
)
from npuc.targets.nvdla.quantisation.sums import COLUMN
from npuc.targets.nvdla.quantisation.tables import half_entries, normalised_half

MULTIPLIERS = 1 + np.arange(1 << 10) / (1 << 10)
"""All fp16 numbers from 1 to 2."""
TRIED = 1 << 12
"""Roundings per channel to find its multiplier; the weights of small kernels are rounded several times."""


class Floats(PassBuilder):
    """Writes the graph of passes in fp16; every scale is 1."""

    def __init__(
        self, graph: Graph, nodes: Sequence[Node], seen: Mapping[str, Moments], winograd: Collection[str]
    ) -> None:
        super().__init__(graph, nodes, dict.fromkeys(tensors_of(nodes), Steps(1.0)), "float32")
        self.seen = seen
        """Statistics of the convolutions' inputs, as far as known."""
        self.winograd = winograd
        """Names of convolutions whose weights are transformed before they are rounded."""

    def as_int8(self, tensor: str) -> str:
        """The tensor itself; for a constant, a copy that the host loads into memory."""
        if tensor not in self.float.constants:
            return super().as_int8(tensor)
        copy = self.fresh(f"{tensor}/brought")
        if copy not in self.have:
            self.add(Node("Identity", (tensor,), (copy,), name=copy))
        return copy

    def unit(self, tensor: str) -> float:
        """1 for every tensor."""
        del tensor
        return 1.0

    def elementwise(self, node: Node) -> tuple[str, PassDraft]:
        """The map that goes through SDP, and the pass."""
        x = node.inputs[0]
        match node.op:
            case "Add" | "Sub" | "Max" | "Min":
                return self._pair(node)
            case "Mul":
                return self._product(node)
            case "Relu" | "Clip" if is_relu(node):
                return x, PassDraft(SdpStage(relu=1))
            case "Neg":
                return x, PassDraft(SdpStage(multiply=1), operands={"x1_mul": _scalar(-1)})
            case "Abs":
                return x, PassDraft(SdpStage(multiply=1, prelu=1), operands={"x1_mul": _scalar(-1)})
            case "PRelu" | "LeakyRelu":
                return x, self.add_slopes(node)
            case "Clip":
                return x, PassDraft(SdpStage(MAX), operands={"x1_alu": _scalar(attributes.MIN(node))})
            case "HardSigmoid":
                operands = {
                    "x1_mul": _scalar(HARD_ALPHA(node)),
                    "x2_alu": _scalar(HARD_BETA(node)),
                }
                return x, PassDraft(SdpStage(multiply=1), SdpStage(SUM, relu=1), {**operands})
            case _:
                return x, half_entries(node)

    def add_slopes(self, node: Node) -> PassDraft:
        """Slopes for negative values in the second stage."""
        return PassDraft(x2=SdpStage(multiply=1, prelu=1), operands={"x2_mul": half(slopes(self.float, node))})

    def add_map(self, node: Node, operand: str) -> PassDraft:
        """A second stage that adds a map."""
        return PassDraft(x2=SdpStage(COMPARISONS[node.op], relu=relu(node)), operands={"x2_alu": operand})

    def weights(self, form: PassDraft, conv: Node, bias: Array | None, unit: float) -> Array:
        """Weights and bias divided by a multiplier per channel, chosen so that the bias is hardly rounded.

        A bias rounded to 11 bits would cost as much as all weights of its channel together.
        """
        del unit
        w = self.float.constants[conv.inputs[1]]
        off = np.zeros(len(w))
        if bias is not None:
            multiplier = _multipliers(w, bias)
            w, share = w / multiplier.reshape(-1, *(1,) * (w.ndim - 1)), bias / multiplier
            form.x1 = SdpStage(SUM, multiply=1)
            form.operands["x1_alu"] = half(share).reshape(COLUMN)
            form.operands["x1_mul"] = half(multiplier).reshape(COLUMN)
            off = half(share) - share
        mean, variance = self._input_moments(conv)
        if conv.name not in self.winograd:
            return round_weights(w, mean, variance, off)
        form.attrs |= {"winograd": 1, "kernel_shape": w.shape[2:]}
        stride = strides_of(conv)
        gain = TRANSFORM_GAIN * constant_positions(*stride)
        return round_weights(transform_weights(w, *stride), gain * mean, TRANSFORM_GAIN * variance, off)

    def _input_moments(self, conv: Node) -> tuple[Array, Array]:
        """Mean and variance of each kernel's input, (K or 1, C, 1, 1)."""
        groups = GROUP(conv)
        found = self.seen.get(conv.inputs[0], UNKNOWN)
        kernels, channels = self.float.shape(conv.inputs[1])[:2]
        of_groups = (
            np.broadcast_to(each, groups * channels).reshape(groups, channels, 1, 1)
            for each in (found.mean, found.variance)
        )
        mean, variance = (np.repeat(each, kernels // groups if groups > 1 else 1, axis=0) for each in of_groups)
        return mean, variance

    def close(self, form: PassDraft, last: Node) -> None:
        """Does nothing: limits of the result are handled like those of any pass."""

    def limits(self, form: PassDraft, last: Node) -> PassDraft | None:
        """The upper limit if no stage is free for it behind the others."""
        limit = upper_limit(last)
        if limit >= FP16_MOST or form.limit(_scalar(limit)):
            return None
        return PassDraft(SdpStage(MIN), operands={"x1_alu": _scalar(limit)})

    def normalise(self, node: Node) -> None:
        """CDP, with tables that reach beyond the samples' values."""
        largest = self.seen.get(node.inputs[0], UNKNOWN).largest
        self.emit_lrn(node, *normalised_half(node, largest))

    def average(self, node: Node) -> None:
        """PDP's average, in fp17, if its window is supported; otherwise sums of a convolution."""
        kernel, x = average_kernel(self.float, node), node.inputs[0]
        window = {} if node.op.startswith("Global") else explicit_window(node, kernel, self.float)
        mean = 1 / (kernel[0] * kernel[1])
        if max(kernel) <= MOST_POOL and max(window_of(node, kernel).begins) < MOST_POOL:
            reciprocals = (bits_of_fp17(1 / kernel[1]), bits_of_fp17(1 / kernel[0]))  # as in the stock firmware
            attrs: dict[str, Attr] = {**window, "kernel_shape": kernel, "reciprocals": reciprocals}
            outputs, name = (node.output,), node.name or node.output
            return self.add(Node("NvAveragePool", (self.as_int8(x),), outputs, attrs, name, node.sources))
        channels = self.float.shape(x)[1]
        taps = self.constant(self.part(node.output, "w"), np.ones((channels, 1, *kernel), np.float16))
        form = PassDraft(SdpStage(multiply=1), operands={"x1_mul": _scalar(mean)})
        attrs = {**window, "group": channels, "average": 1}
        return self.finish("NvConv", (self.as_int8(x), taps), node, form, attrs, node.sources)

    def _pair(self, node: Node) -> tuple[str, PassDraft]:
        """Sum, difference, maximum or minimum of two maps, or of a map and a constant."""
        first, second = node.inputs
        x, other = (first, second) if self.covers(node, first) else (second, first)
        stage = SdpStage(COMPARISONS[node.op], relu=relu(node))
        constant = self.float.constant(other)
        if node.op != "Sub":
            return x, PassDraft(
                x2=stage, operands={"x2_alu": other if constant is None else half(per_channel(constant))}
            )
        if constant is not None and other == second:
            return x, PassDraft(x2=stage, operands={"x2_alu": half(-per_channel(constant))})
        operands: dict[str, Array | str] = {"x1_mul": _scalar(-1)}
        operands["x2_alu"] = first if constant is None else half(per_channel(constant))
        return second, PassDraft(SdpStage(multiply=1), stage, operands)

    def _product(self, node: Node) -> tuple[str, PassDraft]:
        first, second = node.inputs
        x, other = (first, second) if self.covers(node, first) else (second, first)
        constant = self.float.constant(other)
        operand = other if constant is None else half_factors(per_channel(constant))
        return x, PassDraft(SdpStage(multiply=1), operands={"x1_mul": operand})


def _scalar(value: float) -> Array:
    """An operand for a register."""
    return half(np.full(FEW, value))


def _multipliers(w: Array, bias: Array) -> Array:
    """Per channel, of the multipliers that suit its bias best the one that suits its weights best."""
    taps = w.reshape(len(w), -1)
    count = int(np.clip(TRIED // taps.shape[1], 1, 64))
    suiting = least_places(_rounding_error(bias[:, None], MULTIPLIERS), count)
    candidates = MULTIPLIERS[suiting]
    errors = [np.cumsum(_rounding_error(taps, each[:, None]), axis=1)[:, -1] for each in candidates.T]
    return candidates[np.arange(len(w)), np.argmin(errors, axis=0)]


def _rounding_error(values: Array, multipliers: Array) -> Array:
    """Squared rounding error of values stored as fp16 after division by multipliers."""
    exact = values.astype(np.float64)
    with np.errstate(over="ignore"):
        return ((exact / multipliers).astype(np.float16) * multipliers - exact) ** 2
