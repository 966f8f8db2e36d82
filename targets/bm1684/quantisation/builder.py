"""The integer graph: layers with one shift per tensor, 16-bit biases, sums of shifted operands.

An int8 tensor with zero point -128 is unsigned on the chip: its integers are larger by 128, and 0 represents 0,
also in padding. Results of ReLUs are unsigned unless they share the scale of a signed tensor. Biases of the
integer graph contain corrections for zero points, which the chip's own biases do not need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION, GROUP, VALUE
from npuc.ops.quantisation import CONVERSIONS
from npuc.quantize.arithmetic.tables import as_unary, is_relu, wanted_values
from npuc.quantize.arithmetic.weights import FINEST_SHIFT, average_taps
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.network.build import IntegerBuilder, IntegerForm, expect_weights, free_steps
from npuc.quantize.network.construction import Quantised
from npuc.quantize.scales.constraints import average_kernel, data_inputs
from npuc.quantize.scales.model_scales import Steps
from npuc.quantize.scales.spans import expect_within_reach, limits_of
from npuc.targets.bm1684.quantisation.operators import (
    FACTORS,
    LOOKUP,
    OPERATORS,
    PRODUCT,
    SHIFTS,
    SUM,
    UNSIGNED,
    ZEROS,
)
from npuc.targets.bm1684.quantisation.steps import (
    MOST_BIAS,
    MOST_SHIFT,
    MOST_WEIGHT,
    constraints,
    fill_range,
    has_even_weights,
    natural_steps,
    share_steps,
    without_negatives,
)

MOST_PRODUCT_SHIFT = 31


def quantise(
    graph: Graph,
    nodes: Sequence[Node],
    histograms: Mapping[str, Histogram],
    method: str,
    given: Mapping[str, Steps],
) -> Quantised:
    """The integer graph of a float graph. nodes: the nodes that become integer.

    Raises UnsupportedOperator (E205) if weights, biases or factors exceed their bits.
    """
    fixed = share_steps(graph, nodes, natural_steps(given))
    free = {name: histogram for name, histogram in histograms.items() if name not in fixed}
    expect_within_reach(nodes, free)
    demanded = constraints(graph, nodes, free, fixed)
    chosen = free_steps(graph, nodes, free, demanded, method, fixed)
    steps = {**without_negatives(graph, nodes, chosen, demanded), **fixed}
    return _Builder(graph, nodes, fill_range(graph, nodes, steps, free, demanded, method), None, OPERATORS).build()


class _Builder(IntegerBuilder):
    """Builds the integer operators of BM1684."""

    def form(self, node: Node) -> IntegerForm:
        """The integer operator, its attributes and its constant inputs."""
        if is_relu(node) and self.same_steps(node) and self.zeros[node.output] == UNSIGNED:
            self.limits(node)
            return "Identity", {}, ()
        if node.op in CONVERSIONS and self.clips(node):
            low, high = limits_of(self.float, node)
            return self._entries(node, Node("Clip", node.inputs, node.outputs, {"min": low, "max": high}))
        if node.op in CONVERSIONS or (is_relu(node) and not self.same_steps(node)):
            self.limits(node)
            x, y = self.steps(data_inputs(node)[0]), self.steps(node.output)
            if (x.zero, y.zero) == (UNSIGNED, 0):
                return self._rescale(node)
            return SUM, self._shift_attrs(node, data_inputs(node)), ()
        if node.op == "Pad":
            steps = self.steps(node.output)
            value = np.clip(np.rint(VALUE(node) / steps.scale) + steps.zero, -128, 127)
            return "Pad", {**node.attrs, VALUE.name: float(value)}, ()
        if node.op == "Mul":
            return PRODUCT, self._shift_attrs(node, node.inputs), ()
        if (function := node if node.op == "Pow" else as_unary(self.float, node)) is not None:
            return self._entries(node, function)
        op, attrs, extra = super().form(node)
        return op, {**attrs, "relu": 0} if "relu" in attrs and self.behind(node) else attrs, extra

    def limits(self, node: Node) -> tuple[int, int] | None:
        """None: an upper limit coincides with saturation or is refused (E205)."""
        clips = "Clip" in (ACTIVATION(node), node.op) and as_unary(self.float, node) is None
        if clips and self.highest(node) != 127:
            raise UnsupportedOperator("E205", "a limit below the largest integer", node=node.name, op=node.op)

    def sum(self, node: Node, relu: int) -> IntegerForm:
        """A sum in which every operand has its own factor and shift."""
        del relu
        return SUM, self._shift_attrs(node, node.inputs), ()

    def _entries(self, node: Node, function: Node) -> IntegerForm:
        """The entries of a function for every integer; 0 where it is not defined."""
        x, y = self.steps(data_inputs(node)[0]), self.steps(node.output)
        exponents = [self.float.constants[name] for name in function.inputs[1:] if function.op == "Pow"]
        values = wanted_values(function, x.scale, y.scale, x.zero, y.zero, *exponents)
        values = np.nan_to_num(values, nan=y.zero)
        return LOOKUP, {}, self.add_constants(node, {"table": np.clip(np.rint(values), -128, 127).astype(np.int8)})

    def _rescale(self, node: Node) -> IntegerForm:
        """Rescales an unsigned tensor to a signed one by a convolution: a sum of unsigned operands is unsigned."""
        (x,), (_, channels, *_) = data_inputs(node), self.float.shape(node.output)
        (factor,), (shift,) = self._numbers(node, (x,))
        w = np.full((channels, 1, 1, 1), factor, np.int8)
        own = np.zeros(channels, np.int64)
        constants = self._layer_of(node, w, own, shift, self.steps(x), self.steps(node.output))
        return "IntConv", {"group": channels, "average": 1}, constants

    def _shift_attrs(self, node: Node, operands: Sequence[str]) -> dict[str, Attr]:
        signed = any(self.zeros[name] != UNSIGNED for name in operands) or node.op == "Mul"
        if not signed and self.zeros[node.output] != UNSIGNED:
            raise UnsupportedOperator("E205", "no operand has a sign, but the sum", node=node.name, op=node.op)
        factors, shifts = self._numbers(node, operands)
        zeros = tuple(self.zeros[name] for name in (*operands, node.output))
        return {FACTORS.name: factors, SHIFTS.name: shifts, ZEROS.name: zeros}

    def _numbers(self, node: Node, operands: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The factors and shifts of operands; of a product, of both together."""
        ratios, most = [self.scales[name] / self.scales[node.output] for name in operands], MOST_SHIFT
        if node.op == "Mul":
            ratios, most = [ratios[0] * self.scales[operands[1]]], MOST_PRODUCT_SHIFT
        expect_weights(node, np.ones(1), max(ratios))
        shifts = tuple(min(int(np.floor(np.log2(MOST_WEIGHT / ratio))), most) for ratio in ratios)
        return tuple(round(ratio * 2.0**shift) for ratio, shift in zip(ratios, shifts, strict=True)), shifts

    def convert(self, node: Node) -> None:
        """Appends the integer form of a node; a convolution whose channels differ much is the sum of two.

        The second one has the errors of the first one's weights as its weights, with a finer step.
        """
        if has_even_weights(self.float, node) or self.zeros[node.output]:
            super().convert(node)
            return
        x, y, name = self.steps(node.inputs[0]), self.steps(node.output), node.name or node.output
        w, bias = self._numbers_of(node)
        first, own, shift = self._integers(node, w, bias, x, y)
        rest = w - first * (y.scale / x.scale * 2.0**-shift)
        reach = np.abs(rest).reshape(len(rest), -1).sum(axis=1).max() * (x.scale * (255 if x.zero else 127))
        finer = int(np.clip(np.floor(np.log2(127 * y.scale / max(reach, 1e-30))), -6, MOST_SHIFT - 6))
        fine = Steps(y.scale * 2.0**-finer)
        second = self._integers(node, rest, np.zeros(len(w)), x, fine)
        window, made = self.window(node), list[str]()
        for key, steps, integers in (("coarse", y, (first, own, shift)), ("fine", fine, second)):
            tensor = self.fresh(f"{node.output}/{key}")
            self.scales[tensor], self.zeros[tensor] = steps.scale, 0
            constants = self._layer_of(replace(node, outputs=(tensor,)), *integers, x, steps)
            made.append(self.own(tensor))
            inputs = (self.as_int8(node.inputs[0]), *constants)
            self.add(Node("IntConv", inputs, (made[-1],), {**window, "relu": 0}, f"{name}/{key}", node.sources))
        attrs = {FACTORS.name: (64, 64), SHIFTS.name: (6, 6 + finer), ZEROS.name: (0, 0, 0)}
        self.add(Node(SUM, tuple(made), (self.own(node.output),), attrs, name, node.sources))

    def weights(self, node: Node) -> tuple[str, ...]:
        """int8 weights with one shift for all channels."""
        x, y = self.steps(node.inputs[0]), self.steps(node.output)
        return self._layer_of(node, *self._integers(node, *self._numbers_of(node), x, y), x, y)

    def _numbers_of(self, node: Node) -> tuple[Array, Array]:
        """The weights and biases of a convolution."""
        _, weights, *more = node.inputs
        w = self.float.constants[weights]
        return w, self.float.constants[more[0]] if more and more[0] else np.zeros(len(w))

    def _integers(self, node: Node, w: Array, bias: Array, x: Steps, y: Steps) -> tuple[Array, Array, int]:
        """int8 weights, the chip's biases and the shift."""
        expect_weights(node, w, x.scale / y.scale)
        wide = w.astype(np.float64) * (x.scale / y.scale)
        offset = bias.astype(np.float64) / y.scale
        shift = _best_shift(node, wide, offset)
        integers = np.clip(np.rint(wide * 2.0**shift), -128, 127).astype(np.int8)
        return integers, np.rint(offset * 2.0**shift).astype(np.int64), shift

    def average(self, node: Node) -> tuple[str, ...]:
        """An average as a convolution whose taps add up to the ratio of the scales."""
        channels = self.float.shape(node.inputs[0])[1]
        x, y = self.steps(node.inputs[0]), self.steps(node.output)
        expect_weights(node, np.ones(1), x.scale / y.scale / np.prod(average_kernel(self.float, node)))
        taps, shift = average_taps(average_kernel(self.float, node), x.scale / y.scale, MOST_SHIFT)
        w = np.tile(taps, (channels, 1, 1, 1))
        return self._layer_of(node, w, np.zeros(channels, np.int64), shift, x, y)

    def _layer_of(self, node: Node, w: Array, own: Array, shift: int, x: Steps, y: Steps) -> tuple[str, ...]:
        """The constants of an IntConv. own: the chip's bias."""
        if x.zero not in (0, UNSIGNED) or y.zero not in (0, UNSIGNED):
            raise UnsupportedOperator("E205", "a zero point other than 0 and -128", node=node.name, op=node.op)
        total = w.astype(np.int64).reshape(len(w), -1).sum(axis=1)
        bias = own - x.zero * total + (y.zero << shift)
        return self.layer(node, w, bias.astype(np.int32), np.full(len(w), shift, np.int8))

    def depthwise(self, node: Node) -> bool:
        """Whether a node is computed by the depthwise call."""
        if node.op == "Conv":
            return GROUP(node) == self.float.shape(node.inputs[0])[1] > 1
        return node.op in ("AveragePool", "GlobalAveragePool")

    def behind(self, node: Node) -> IntegerForm | None:
        """An IntRelu after layers that cannot compute a ReLU with a signed result."""
        signed = (ACTIVATION(node) in ("Relu", "Clip") or is_relu(node)) and not self.zeros[node.output]
        rescaled = is_relu(node) and not self.same_steps(node)
        self.limits(node)
        return ("IntRelu", {}, ()) if signed and (node.op == "Add" or self.depthwise(node) or rescaled) else None


def _best_shift(node: Node, wide: Array, offset: Array) -> int:
    """The shift with the least squared error of the weights for which every bias fits 16 bits."""
    largest = max(float(np.abs(wide).max(initial=0)), 1e-30)
    safe = int(np.floor(np.log2(MOST_WEIGHT / largest)))
    most_shift = int(np.floor(np.log2(MOST_BIAS / max(float(np.abs(offset).max(initial=0)), 0.5))))
    if most_shift < 0:
        raise UnsupportedOperator(
            "E205",
            "the bias is too large for 16 bits",
            node=node.name,
            op=node.op,
            limit="32,767 steps of the result",
        )
    most = min(FINEST_SHIFT, MOST_SHIFT, most_shift)

    def error(shift: int) -> float:
        power = 2.0**shift
        return float(((np.clip(np.rint(wide * power), -128, 127) / power - wide) ** 2).sum())

    candidates = [max(min(safe + more, most), 0) for more in (0, 1)]
    return min(candidates, key=error)
