"""The passes of int8 and int16: weights, limits and averages from scales and zero points."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf, log2

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION, GROUP
from npuc.ops.quantisation import CONVERSIONS
from npuc.ops.windows import window_of
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.scales.constraints import average_kernel
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.nvdla.arithmetic.fixed_point import FixedWeights, addends, factor, quantise_weights, share
from npuc.targets.nvdla.arithmetic.integer import (
    IDLE,
    TRANSFORM_GAIN,
    SdpStage,
    constant_positions,
    strides_of,
    transform_weights,
)
from npuc.targets.nvdla.model.arithmetic import ONE, WIDTHS, Widths
from npuc.targets.nvdla.quantisation.builder import (
    FEW,
    MAX,
    MIN,
    MOST_POOL,
    SUM,
    PassDraft,
    explicit_window,
    scalar,
)
from npuc.targets.nvdla.quantisation.constraints import upper_limit
from npuc.targets.nvdla.quantisation.elementwise import OPERAND_BITS, ElementwiseBuilder
from npuc.targets.nvdla.quantisation.sums import COLUMN, choose_sums, exact_sums, stages_of
from npuc.targets.nvdla.quantisation.tables import normalisation_tables

CLOSE = 2.0**-20
"""The relative error allowed for the ratio of two given scales; onnxruntime's floats have 2^-24."""
MOST_WEIGHT = 127


NOT_KNOWN: Mapping[str, float] = {}
SLACK = 1e-6
"""Tolerance of a binary logarithm, for rounded scales."""
LEAST = 64
"""The smallest second reciprocal whose own rounding costs no accuracy."""
GRAIN = 4
"""First reciprocals are multiples of this, so that SDP's 16-bit multipliers can represent them too."""


class Integers(ElementwiseBuilder):
    """Writes the integer graph from a scale for every tensor; given ones come with integer weights."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        steps: Mapping[str, Steps],
        given: Collection[str],
        precision: str = "int8",
        winograd: Collection[str] = (),
        largest: Mapping[str, float] = NOT_KNOWN,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(graph, nodes, steps, precision, dtypes)
        self.given = given
        self.winograd = winograd
        """Names of convolutions whose weights are transformed before they are rounded."""
        self.largest = largest
        """The largest magnitude of tensors, as far as samples show it."""

    def weights(self, form: PassDraft, conv: Node, bias: Array | None, unit: float) -> Array:
        """The integer weights; sets the form's stages to convert sums to steps of `unit`."""
        x, w = conv.inputs[0], self.float.constants[conv.inputs[1]]
        steps = self.steps(x)
        single = GROUP(conv) == 1
        taken = x in self.given and self.element == "int8"  # kept weights are bytes
        sums = exact_sums(w, bias, steps.scale, steps.zero, unit, twice=single) if taken else None
        fraction = 0 if form.x2 == IDLE else self.fraction
        if sums is None and conv.name in self.winograd:
            shift = self._bits_too_many(x)
            form.attrs |= {"winograd": 1, "kernel_shape": w.shape[2:], "pra_truncate": shift}
            u, positions = transform_weights(w, *strides_of(conv)), constant_positions(*strides_of(conv))
            found = quantise_weights(
                u, bias, steps.scale * 2**shift, unit, steps.zero, self.element, fraction, positions
            )
            return self._round_weights(form, found)
        if sums is None and steps.zero and form.x2 == IDLE:
            sums = choose_sums(w, bias, steps.scale, steps.zero, unit)
        if sums is None:
            found = quantise_weights(w, bias, steps.scale, unit, steps.zero, self.element, fraction)
            return self._round_weights(form, found)
        form.x1, second, operands = stages_of(sums, free=form.x2 == IDLE)
        form.operands |= operands
        form.x2 = form.x2 if second == IDLE else second
        return sums.w

    def read(self, conv: Node, weights: Array) -> str:
        """The map that a convolution reads: with every channel twice if 9-bit weights are split in two parts."""
        x = super().read(conv, weights)
        if weights.shape[1] * GROUP(conv) == self.float.shape(conv.inputs[0])[1]:
            return x
        twice = self.fresh(f"{x}/twice")
        if twice not in self.have:
            self.add(Node("Concat", (x, x), (twice,), {"axis": 1}, twice, conv.sources))
        return twice

    def _bits_too_many(self, x: str) -> int:
        """The bits by which C^T d C exceeds an element of x, given the largest value in the samples."""
        steps, whole = self.steps(x), float(np.iinfo(self.element).max)
        most = min(self.largest.get(x, inf) / steps.scale + abs(steps.zero), whole)
        return max(ceil(log2(max(TRANSFORM_GAIN * most / whole, 1)) - SLACK), 0)

    def _round_weights(self, form: PassDraft, found: FixedWeights) -> Array:
        """The integer weights; puts their stage into the form."""
        form.x1 = SdpStage(SUM, found.bias_shift, 1, 0, found.shift)
        form.operands |= {"x1_alu": found.bias.reshape(COLUMN), "x1_mul": found.multiplier.reshape(COLUMN)}
        form.attrs |= {"truncate": found.truncate} if found.truncate else {}
        return found.w

    def close(self, form: PassDraft, last: Node) -> None:
        """Adds the upper limit if a stage is free, and the result's zero point."""
        most = self._limits(last)[1]
        if form.x2 == IDLE and most < np.iinfo(self.element).max:
            form.x2 = SdpStage(MIN)
            form.operands["x2_alu"] = scalar(most - self.zeros[last.output])
        form.converter = form.output_converter(self.zeros[last.output])

    def _limits(self, node: Node) -> tuple[int, int]:
        """The smallest and largest integer of a node's result, from its activation or as a Clip from 0."""
        zero, whole = self.zeros[node.output], np.iinfo(self.element)
        top = upper_limit(node) / self.scales[node.output] + zero
        low = ACTIVATION(node) in ("Relu", "Clip") or is_relu(node)
        return zero if low else whole.min, whole.max if top >= whole.max - 0.5 else round(top)

    def limits(self, form: PassDraft, last: Node) -> PassDraft | None:
        """The pass for limits of the result that a form has no stage for; None if there are none."""
        (low, high), whole = self._limits(last), np.iinfo(self.element)
        lower = low > whole.min and not (form.x2.relu or (form.x2.alu in (0, MIN) and form.x1.relu))
        upper = high < whole.max and form.x2.alu != MIN
        if not lower and not upper:
            return None
        return PassDraft(SdpStage(MAX), SdpStage(MIN), {"x1_alu": scalar(low), "x2_alu": scalar(high)})

    def unlimited_result(self, name: str, tensor: str) -> str:
        """The name of a result before its limits, which has the result's scale."""
        free = super().unlimited_result(name, tensor)
        self.before_limits(free, tensor)
        return free

    def write(self, node: Node) -> None:
        """Appends the passes of a node; sums of maps with given scales take two passes if one is too coarse."""
        if node.op == "Add" and node in self.computed and node not in self.groups:
            parts = self._given_maps(node)
            if parts is not None and self.part_of(1.0, *parts).error(self._ratio(*parts)) > CLOSE:
                self.element = self.dtype_of(node.output)
                return self._add_exactly(node, *parts)
        return super().write(node)

    def _ratio(self, x: str, other: str) -> float:
        return self.scales[x] / self.scales[other]

    def _given_maps(self, node: Node) -> tuple[str, str] | None:
        """The two maps of a sum if the model provides their scales and that of the result."""
        both = self.given.__contains__
        if not all(map(both, (*node.inputs, node.output))) or not all(self.covers(node, x) for x in node.inputs):
            return None
        return self.in_order(node)

    def _add_exactly(self, node: Node, x: str, other: str) -> None:
        """A sum whose first map is scaled by a depthwise 1x1 convolution: X1's multiplier is too coarse."""
        part = share(self._ratio(x, other), OPERAND_BITS - self.bits, MOST_WEIGHT)
        form = self.two_maps(node, part, other).subtract_zero(self.zeros[x] * part.weight)
        form.converter = form.output_converter(self.zeros[node.output])
        channels = self.float.shape(x)[1]
        taps = np.full((channels, 1, 1, 1), part.weight, self.element)
        inputs = self.as_int8(x), self.constant(self.part(self.int8(node.output), "w"), taps)
        self.finish("NvConv", inputs, node, form, {"group": channels, "average": 1}, node.sources)

    def normalise(self, node: Node) -> None:
        """CDP, which converts the product of input and table to the scale of the result."""
        tables, attrs = normalisation_tables(node, self.steps(node.inputs[0]), self.steps(node.output), self.bits)
        self.emit_lrn(node, np.array(tables.le, np.int16), np.array(tables.lo, np.int16), attrs)

    def _rounds_itself(self, x: str) -> bool:
        """Whether the model itself rounds a map, so that its average must be rounded only once."""
        producer = self.float.producers.get(x)
        return producer is not None and producer.op in CONVERSIONS

    def average(self, node: Node) -> None:
        """PDP's average if its window is supported and nothing wraps; otherwise sums of a convolution."""
        kernel, x = average_kernel(self.float, node), node.inputs[0]
        (x_scale, x_zero), (y_scale, y_zero) = (
            (each.scale, each.zero) for each in map(self.steps, (x, node.output))
        )
        ratio, count = x_scale / y_scale, kernel[0] * kernel[1]
        window = {} if node.op.startswith("Global") else explicit_window(node, kernel, self.float)
        window |= self.padding(x, window)
        widths = WIDTHS[self.bits // 8]
        found = reciprocals(ratio, count, widths)
        once = count <= widths.most_elements or not self._rounds_itself(x)
        reaches = max(kernel) <= MOST_POOL and max(window_of(node, kernel).begins) < MOST_POOL
        if found and once and reaches and x_zero == y_zero and (ratio == 1 or not x_zero):
            attrs: dict[str, Attr] = {**window, "kernel_shape": kernel, "reciprocals": found}
            outputs = (self.int8(node.output),)
            name = node.name or node.output
            self.add(Node("NvAveragePool", (self.as_int8(x),), outputs, attrs, name, node.sources))
            return
        multiplier, shift = factor(ratio / count)
        form = PassDraft(SdpStage(multiply=1, shift=shift), operands={"x1_mul": scalar(multiplier)})
        if x_zero:
            offset, left = addends(np.full(FEW, -x_zero * count))
            form.x1 = replace(form.x1, alu=SUM, alu_shift=left)
            form.operands["x1_alu"] = offset
        form.converter = form.output_converter(y_zero)
        channels = self.float.shape(x)[1]
        taps = self.constant(self.part(self.int8(node.output), "w"), np.ones((channels, 1, *kernel), self.element))
        attrs = {**window, "group": channels, "average": 1}
        self.finish("NvConv", (self.as_int8(x), taps), node, form, attrs, node.sources)


def reciprocals(ratio: float, taps: int, widths: Widths) -> tuple[int, int] | None:
    """The reciprocals of width and height that multiply sums of `taps` elements by ratio / taps; None if sums can
    wrap.

    The first one keeps as many bits as the unit has, the second one is the rest of the ratio.
    """
    first = ONE if taps <= widths.most_elements else ONE * widths.most_elements // taps // GRAIN * GRAIN
    wanted = ratio * ONE / (taps * first / ONE)
    most = 1 << (widths.element - 1)
    for second in (round(wanted), round(wanted) - 1):
        second -= second % GRAIN if second >= ONE // 2 else 0
        ends = np.array([-most * taps, (most - 1) * taps])
        inside = np.abs((ends * first / ONE) * (second / ONE)) < (most + 0.5, most - 0.5)
        if LEAST <= second <= ONE and inside.all():
            return first, second
    return None
