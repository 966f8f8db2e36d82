"""The pass of each elementwise operator: SDP's stages and the output converter on integers.

With zero points an element represents scale * (integer - zero). X1's adder removes the zero point of the map that
goes through SDP; those of an operand and of the result are in the output converter's offset. So values between the
stages have no zero point.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import HARD_ALPHA, HARD_BETA, MIN
from npuc.ops.quantisation import CONVERSIONS
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.nvdla.arithmetic.fixed_point import (
    FRACTION,
    SumShare,
    addends,
    factor,
    factors,
    share,
    two_factors,
)
from npuc.targets.nvdla.arithmetic.integer import RESULT, SdpStage
from npuc.targets.nvdla.quantisation.builder import (
    COMPARISONS,
    FEW,
    MAX,
    SUM,
    PassBuilder,
    PassDraft,
    per_channel,
    relu,
    scalar,
    slopes,
)
from npuc.targets.nvdla.quantisation.tables import every_value, wide_entries

OPERAND_BITS = 30
"""Bits of a shifted operand, whose zero point adds one bit to an element, with one more left for the sum."""
FINEST_OPERAND = 2.0**-10
"""In steps of the sum: an operand with finer steps is requantised to these, within the multipliers' range."""


class ElementwiseBuilder(PassBuilder):
    """A builder that creates the pass of each elementwise operator on integers."""

    element: str
    """The number format of the pass that is written, its operands and its result."""

    def write(self, node: Node) -> None:
        """Appends the passes of a node, in the format of its results."""
        self.element = self.dtype_of(node.outputs[0])
        super().write(node)

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return np.iinfo(self.element).bits

    @property
    def fraction(self) -> int:
        """Fractional bits of a value between the stages; int16 needs none."""
        return FRACTION if self.bits == 8 else 0

    @property
    def fine_step(self) -> float:
        """A step between the stages, in steps of a tensor."""
        return 2.0**-self.fraction

    def unit(self, tensor: str) -> float:
        """The scale of values between the stages, a fraction of the tensor's."""
        return self.scales[tensor] * self.fine_step

    def elementwise(self, node: Node) -> tuple[str, PassDraft]:
        """The map that goes through SDP, and the pass."""
        if node.op in ("Max", "Min") and self._zeros(node):
            return self._compare(node)
        x, form = self._form(node)
        if self.dtype_of(x) != self.element:
            form = PassDraft(attrs={RESULT.name: self.element}).convert(self.scales[x] / self.scales[node.output])
        if "table" not in form.operands:
            form.subtract_zero(self.zeros[x]).converter = form.output_converter(self.zeros[node.output])
        return self.as_int8(x), form

    def _form(self, node: Node) -> tuple[str, PassDraft]:
        """The float tensor that goes through SDP, and the pass without the zero points of it and the result."""
        x, y = node.inputs[0], self.scales[node.output]
        ratio = self.scales[x] / y if x in self.scales else 1.0
        match node.op:
            case "Add" | "Sub" | "Max" | "Min":
                return self._pair(node, y)
            case "Mul":
                return self._product(node, y)
            case op if op in CONVERSIONS:
                return x, self._brought(PassDraft(), ratio)
            case "Relu" | "Clip" if is_relu(node):
                if self._is_symmetric(node):
                    return x, PassDraft(SdpStage(relu=1)).convert(ratio)
                form = self._brought(PassDraft(), ratio)
                form.x1 = replace(form.x1, relu=1)
                return x, form
            case "Neg":
                return x, PassDraft().convert(-ratio) if self._is_symmetric(node) else self._brought(
                    PassDraft(), -ratio
                )
            case "Abs":
                return x, self._absolute(node, ratio)
            case "PRelu" | "LeakyRelu":
                return x, self._brought(self.add_slopes(node), ratio)
            case "Clip":
                low, shift = addends(np.array(MIN(node) / y * 2.0**self.fraction).reshape(FEW))
                return x, self._brought(self._second(SdpStage(MAX, shift), low), ratio)
            case "HardSigmoid":
                beta, shift = addends(np.array(HARD_BETA(node) / y * 2.0**self.fraction).reshape(FEW))
                form = self._second(SdpStage(SUM, shift, relu=1), beta)
                return x, self._brought(form, ratio * HARD_ALPHA(node))
            case _:
                steps = self.steps(x), self.steps(node.output)
                return x, every_value(node, *steps) if self.bits == 8 else wide_entries(node, *steps)

    def add_slopes(self, node: Node) -> PassDraft:
        """Slopes for negative values in the second stage, at fractions of the result's scale."""
        values, shift = factors(slopes(self.float, node))
        form = PassDraft(x2=SdpStage(multiply=1, prelu=1, shift=shift), operands={"x2_mul": values})
        return form.convert(self.fine_step)

    def _second(self, stage: SdpStage, operand: Array) -> PassDraft:
        """A second stage with a register operand, at fractions of the result's scale."""
        return PassDraft(x2=stage, operands={"x2_alu": operand}).convert(self.fine_step)

    def add_map(self, node: Node, operand: str) -> PassDraft:
        """A second stage that adds a map, at fractions of its scale, to the output of the first."""
        unit = self.scales[operand] * self.fine_step
        zero = self.zeros[operand]
        form = PassDraft(x2=SdpStage(COMPARISONS[node.op], self.fraction, relu=int(relu(node) and not zero)))
        form.operands["x2_alu"] = operand
        form.excess = zero * 2.0**self.fraction
        return form.convert(unit / self.scales[node.output])

    def _zeros(self, node: Node) -> bool:
        return any(self.zeros.get(name, 0) for name in (*node.inputs, node.output))

    def _is_symmetric(self, node: Node) -> bool:
        return not any(self.zeros.get(name, 0) for name in (node.inputs[0], node.output))

    def _copy(self, node: Node, tensor: str, steps: Steps) -> str:
        """The name of a copy of a float tensor with another scale or zero point, computed by a pass of its own."""
        if steps == self.steps(tensor):
            return tensor
        if (tensor, node.output) in self.copies:  # both operands are this tensor
            return self.copies[tensor, node.output]
        copy = self.copies[tensor, node.output] = self.fresh(f"{tensor}/for/{node.output}")
        self.scales[copy], self.zeros[copy], self.dtypes[copy] = steps.scale, steps.zero, self.element
        form = self._brought(PassDraft(), self.scales[tensor] / steps.scale).subtract_zero(self.zeros[tensor])
        form.converter = form.output_converter(steps.zero)
        source = self.as_int8(tensor)
        self.emit("NvElementwise", (source,), self.int8(copy), node, form, {}, node.sources, f"/{tensor}")
        return copy

    def _compare(self, node: Node) -> tuple[str, PassDraft]:
        """Maximum or minimum of two tensors with zero points, both requantised like the result."""
        covering = [name for name in node.inputs if self.covers(node, name)]
        x, other = covering[0], node.inputs[1] if node.inputs[0] == covering[0] else node.inputs[0]
        steps = self.steps(node.output)
        constant = self.float.constant(other)
        if constant is None:
            operand: Array | str = self._copy(node, other, steps)
        else:
            operand = (
                np.rint(per_channel(constant) / steps.scale + steps.zero).clip(-32768, 32767).astype(np.int16)
            )
        form = PassDraft(x2=SdpStage(COMPARISONS[node.op]), operands={"x2_alu": operand})
        return self.as_int8(self._copy(node, x, steps)), form

    def _brought(self, form: PassDraft, ratio: float) -> PassDraft:
        """The form behind a first stage that converts x to fractions of the result's steps."""
        multiplier, shift = factor(ratio * 2.0**self.fraction)
        form.x1 = SdpStage(multiply=1, shift=shift)
        form.operands["x1_mul"] = scalar(multiplier)
        return form.convert(self.fine_step)

    def _absolute(self, node: Node, ratio: float) -> PassDraft:
        form = PassDraft(SdpStage(multiply=1, prelu=1), operands={"x1_mul": scalar(-1)})
        if self._is_symmetric(node):
            return form.convert(ratio)
        multiplier, shift = factor(ratio * 2.0**self.fraction)
        form.x2 = SdpStage(multiply=1, shift=shift)
        form.operands["x2_mul"] = scalar(multiplier)
        return form.convert(self.fine_step)

    def _pair(self, node: Node, y: float) -> tuple[str, PassDraft]:
        """Sum, difference, maximum or minimum of two maps, or of a map and a constant."""
        first, second = node.inputs
        sign = 1.0
        if second in self.float.constants or (node.op != "Sub" and first not in self.float.constants):
            x, other = self.in_order(node)
        else:  # a - b as (-b) + a, and constants as operand
            x, other = second, first
            sign = -1.0 if node.op == "Sub" else 1.0
        constant = self.float.constant(other)
        if constant is None:
            other = self.operand(node, other)
            return x, self.two_maps(node, self.part_of(sign, x, other), other)
        unit = y * self.fine_step
        negative = node.op == "Sub" and other == second
        values, shift = addends((-1 if negative else 1) * per_channel(constant) / unit)
        form = PassDraft(x2=SdpStage(COMPARISONS[node.op], shift, relu=relu(node)), operands={"x2_alu": values})
        multiplier, right = factor(sign * self.scales[x] / unit)
        form.x1 = SdpStage(multiply=1, shift=right)
        form.operands["x1_mul"] = scalar(multiplier)
        return x, form.convert(unit / y)

    def operand(self, node: Node, tensor: str) -> str:
        """The operand of a sum, or a copy of it with a coarser scale if its own is too fine for any multiplier."""
        finest = self.scales[node.output] * FINEST_OPERAND
        return tensor if self.scales[tensor] >= finest else self._copy(node, tensor, Steps(finest))

    def two_maps(self, node: Node, part: SumShare, other: str) -> PassDraft:
        """A map times its share of the sum, unrounded, plus another map shifted to match.

        X2 and the converter multiply by the rest of the ratio, as exactly as two 16-bit factors allow.
        """
        reach = 2**self.bits * (abs(part.multiplier) * part.weight + 2.0**part.left)
        unit = self.scales[other] * 2.0**-part.left
        reach = max(reach, abs(self.zeros[node.output]) * self.scales[node.output] / unit)
        rest = two_factors(unit / self.scales[node.output], reach)
        ends = relu(node) and not self.zeros[other]
        second = SdpStage(COMPARISONS[node.op], part.left, 1, shift=rest.shift, relu=int(ends))
        form = PassDraft(SdpStage(multiply=1), second, converter=(0, rest.scale, rest.scale_shift))
        form.operands |= {
            "x1_mul": scalar(part.multiplier),
            "x2_alu": other,
            "x2_mul": scalar(rest.first),
        }
        form.excess = self.zeros[other] * 2.0 ** (part.left - rest.shift) * rest.first
        return form

    def part_of(self, sign: float, x: str, other: str) -> SumShare:
        """The multiplier of a map before another is added to it."""
        return share(sign * self.scales[x] / self.scales[other], OPERAND_BITS - self.bits)

    def in_order(self, node: Node) -> tuple[str, str]:
        """The operand that goes through SDP, and the other; chosen so that the share of the sum is most exact."""
        orders = [pair for pair in (node.inputs, node.inputs[::-1]) if self.covers(node, pair[0])]
        if len(orders) == 1:
            return orders[0][0], orders[0][1]
        missed = [
            self.scales[x] * self.part_of(1.0, x, other).error(self.scales[x] / self.scales[other])
            for x, other in orders
        ]
        x, other = orders[int(np.argmin(missed))]
        return x, other

    def _product(self, node: Node, y: float) -> tuple[str, PassDraft]:
        """A product. The multiplier's operand must have no zero point: a map without one, otherwise a copy without
        one.

        Such a copy has half the resolution: a gate from 0 to 1 with a zero point of -128 loses its eighth bit.
        """
        covering = [name for name in node.inputs if self.covers(node, name)]
        x = next((name for name in covering if self.zeros[name]), covering[0])
        other = node.inputs[1] if node.inputs[0] == x else node.inputs[0]
        constant = self.float.constant(other)
        if constant is None:
            centre = Steps(self.steps(other).reach / 127) if self.zeros[other] else self.steps(other)
            other = self._copy(node, other, centre)
            form = PassDraft(SdpStage(multiply=1), operands={"x1_mul": other})
            return x, form.convert(self.scales[x] * self.scales[other] / y)
        values, shift = factors(per_channel(constant) * (self.scales[x] / y))
        return x, PassDraft(SdpStage(multiply=1, shift=shift), operands={"x1_mul": values})
