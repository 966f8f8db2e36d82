"""Walks the float graph once, and writes the integer graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.windows import window_of
from npuc.quantize.draft import Draft, Quantised, int8_name
from npuc.quantize.tables import CONVERSIONS, is_relu, wanted_values
from npuc.quantize.ties import MOVEMENT, SELECTION, average_kernel
from npuc.targets.nvdla.fixed_point import (
    FRACTION,
    addends,
    factor,
    factors,
    quantise_weights,
)
from npuc.targets.nvdla.integer import ALU, RECIPROCAL_BITS, Stage
from npuc.targets.nvdla.quantisation.form import FEW, Form, explicit_window, few, limited, per_channel, relu
from npuc.targets.nvdla.quantisation.groups import Group, groups

SUM, MAX, MIN = (ALU.index(name) for name in ("sum", "max", "min"))
COMPARISONS = {"Add": SUM, "Sub": SUM, "Max": MAX, "Min": MIN}
MOST_POOL = 8
"""The largest window of PDP, each way."""
LEAST_RECIPROCAL = 256
"""Of the smallest reciprocal with which PDP averages: its rounding costs at most 1/4 step of the result."""
OPERANDS = ("x1_alu", "x1_mul", "x2_alu", "x2_mul", "table")


class Builder(Draft):
    """Walks the float graph once."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], scales: Mapping[str, float]) -> None:
        super().__init__(graph, scales)
        self.integer = {id(node) for node in nodes}
        self.groups = groups(graph, nodes)
        self.joined = {id(group.conv) for group in self.groups.values()}

    def built(self) -> Quantised:
        """The integer graph of all nodes."""
        for node in self.float.nodes:
            if id(node) in self.joined:
                continue
            if id(node) not in self.integer:
                self.keep(node)
            elif node.op in CONVERSIONS:
                self.share(node.output, self.as_int8(node.inputs[0]))
            elif node.op in (*MOVEMENT, *SELECTION):
                self._move(node)
            elif id(node) in self.groups:
                self._group(node, self.groups[id(node)])
            else:
                self._single(node)
        return self.result()

    def _move(self, node: Node) -> None:
        """What selects or moves elements is the same on int8."""
        attrs: dict[str, Attr] = dict(node.attrs)
        op = node.op
        if op == "GlobalMaxPool":
            op, attrs["kernel_shape"] = "MaxPool", average_kernel(self.float, node)
        inputs = tuple(self.as_int8(name) for name in node.inputs)
        outputs = tuple(int8_name(name) for name in node.outputs)
        self.add(Node(op, inputs, outputs, attrs, node.name or node.output, node.sources))

    def _group(self, node: Node, group: Group) -> None:
        y = self.scales[node.output]
        operand = group.operand
        if operand is None:
            form = self._sloped(node)
            return self._conv(group.conv, node, form, y * 2.0**-FRACTION, x1=0)
        unit = self.scales[operand] * 2.0**-FRACTION
        form = Form(x2=Stage(alu=SUM, alu_shift=FRACTION, relu=relu(node)), operands={"x2_alu": operand})
        return self._conv(group.conv, node, form.convert(unit / y), unit, x1=relu(group.conv))

    def _conv(self, conv: Node, last: Node, form: Form, unit: float, x1: int) -> None:
        """The pass of a convolution whose first stage gives steps of `unit`, with ReLU if x1 says so."""
        x, w, *rest = conv.inputs
        bias = self.float.constants[rest[0]] if rest and rest[0] else None
        found = quantise_weights(self.float.constants[w], bias, self.scales[x], unit)
        form.x1 = Stage(SUM, found.bias_shift, 1, 0, found.shift, x1)
        column = (-1, 1, 1)
        form.operands |= {"x1_alu": found.bias.reshape(column), "x1_mul": found.multiplier.reshape(column)}
        weights = self.constant(f"{int8_name(last.output)}/w", found.w)
        keys = ("strides", "pads", "dilations", "group")
        window = {key: conv.attrs[key] for key in keys if key in conv.attrs}
        sources = tuple(dict.fromkeys((*conv.sources, *last.sources)))
        self._emit("NvConv", (self.as_int8(x), weights), last, form, window, sources)

    def _emit(
        self,
        op: str,
        inputs: tuple[str, ...],
        last: Node,
        form: Form,
        window: Mapping[str, Attr],
        sources: tuple[str, ...],
    ) -> None:
        attrs: dict[str, Attr] = dict(window)
        attrs |= {"x1": form.x1.as_attr(), "x2": form.x2.as_attr(), "converter": form.converter}
        extra = tuple(self._operand(last, key, form.operands.get(key)) for key in OPERANDS)
        name = last.name or last.output
        self.add(Node(op, (*inputs, *extra), (int8_name(last.output),), attrs, name, sources))

    def _operand(self, last: Node, key: str, value: Array | str | None) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            return self.as_int8(value)
        return self.constant(f"{int8_name(last.output)}/{key}", value)

    def _single(self, node: Node) -> None:
        """A pass of one node."""
        if node.op == "Conv":
            return self._conv(node, node, Form(), self.scales[node.output], relu(node))
        if node.op in ("AveragePool", "GlobalAveragePool"):
            return self._average(node)
        x, form = self._elementwise(node)
        return self._emit("NvElementwise", (self.as_int8(x),), node, form, {}, node.sources)

    def _elementwise(self, node: Node) -> tuple[str, Form]:
        """The map that goes through SDP, and the pass."""
        x, y = node.inputs[0], self.scales[node.output]
        ratio = self.scales[x] / y if x in self.scales else 1.0
        match node.op:
            case "Add" | "Sub" | "Max" | "Min":
                return self._pair(node, y)
            case "Mul":
                return self._product(node, y)
            case "Relu" | "Clip" if is_relu(node):
                return x, Form(Stage(relu=1)).convert(ratio)
            case "Neg":
                return x, Form().convert(-ratio)
            case "Abs":
                return x, Form(Stage(multiply=1, prelu=1), operands={"x1_mul": few(-1)}).convert(ratio)
            case "PRelu" | "LeakyRelu":
                return x, self._scaled(self._sloped(node), ratio)
            case "Clip":
                low, shift = addends(np.array(node.number("min", -inf) / y * 2.0**FRACTION).reshape(FEW))
                return x, self._scaled(limited(Stage(MAX, shift), low), ratio)
            case "HardSigmoid":
                beta, shift = addends(np.array(node.number("beta", 0.5) / y * 2.0**FRACTION).reshape(FEW))
                form = limited(Stage(SUM, shift, relu=1), beta)
                return x, self._scaled(form, ratio * node.number("alpha", 0.2))
            case _:
                return x, self._table(node, self.scales[x], y)

    def _scaled(self, form: Form, ratio: float) -> Form:
        """The form behind a first stage that brings x to fractions of the result's steps."""
        multiplier, shift = factor(ratio * 2.0**FRACTION)
        form.x1 = Stage(multiply=1, shift=shift)
        form.operands["x1_mul"] = few(multiplier)
        return form

    def _sloped(self, node: Node) -> Form:
        """Slopes of negative values in the second stage, on fractions of the result's steps."""
        if node.op == "LeakyRelu":
            slope, shift = factor(node.number("alpha", 0.01))
            values = few(slope)
        else:
            shape = self.float.constants[node.inputs[1]].shape
            given = self.float.constants[node.inputs[1]].reshape((-1, 1, 1) if len(shape) < 3 else shape[-3:])
            values, shift = factors(given.astype(np.float64))
        form = Form(x2=Stage(multiply=1, prelu=1, shift=shift), operands={"x2_mul": values})
        return form.convert(2.0**-FRACTION)

    def _pair(self, node: Node, y: float) -> tuple[str, Form]:
        """Sum, difference, maximum or minimum of two maps, or of a map and a constant."""
        first, second = node.inputs
        alu = COMPARISONS[node.op]
        sign = 1.0
        if second in self.float.constants or (node.op != "Sub" and first not in self.float.constants):
            x, other = (first, second) if self._covers(node, first) else (second, first)
        else:  # a - b as (-b) + a, and constants as operand
            x, other = second, first
            sign = -1.0 if node.op == "Sub" else 1.0
        constant = self.float.constant(other)
        if constant is None:
            unit = self.scales[other] * 2.0**-FRACTION
            stage = Stage(alu, FRACTION, relu=relu(node))
            form = Form(x2=stage, operands={"x2_alu": other})
        else:
            unit = y * 2.0**-FRACTION
            negative = node.op == "Sub" and other == second
            values, shift = addends((-1 if negative else 1) * per_channel(constant) / unit)
            form = Form(x2=Stage(alu, shift, relu=relu(node)), operands={"x2_alu": values})
        multiplier, right = factor(sign * self.scales[x] / unit)
        form.x1 = Stage(multiply=1, shift=right)
        form.operands["x1_mul"] = few(multiplier)
        return x, form.convert(unit / y)

    def _covers(self, node: Node, name: str) -> bool:
        """Whether an operand has the shape of the result, so that it goes through SDP."""
        return name not in self.float.constants and self.float.shape(name) == self.float.shape(node.output)

    def _product(self, node: Node, y: float) -> tuple[str, Form]:
        first, second = node.inputs
        x, other = (first, second) if self._covers(node, first) else (second, first)
        constant = self.float.constant(other)
        if constant is None:
            form = Form(Stage(multiply=1), operands={"x1_mul": other})
            return x, form.convert(self.scales[x] * self.scales[other] / y)
        values, shift = factors(per_channel(constant) * (self.scales[x] / y))
        return x, Form(Stage(multiply=1, shift=shift), operands={"x1_mul": values})

    def _table(self, node: Node, x: float, y: float) -> Form:
        """A function of one element, its value for every int8."""
        with np.errstate(invalid="ignore"):
            wanted = np.rint(wanted_values(node, x, y))
        if np.isnan(wanted).any():
            wanted = np.nan_to_num(wanted, nan=0.0)
        return Form(operands={"table": wanted.clip(-128, 127).astype(np.int16)})

    def _average(self, node: Node) -> None:
        """PDP's average where its window reaches; sums of a convolution for larger ones."""
        kernel, x = average_kernel(self.float, node), node.inputs[0]
        ratio = self.scales[x] / self.scales[node.output]
        channels = self.float.shape(x)[1]
        window = {} if node.op.startswith("Global") else explicit_window(node, kernel, self.float)
        reciprocal = round(ratio / (kernel[0] * kernel[1]) * 2**RECIPROCAL_BITS)
        if (
            max(kernel) <= MOST_POOL
            and max(window_of(node, kernel).begins) < MOST_POOL
            and 64 <= reciprocal < 1 << 17
        ):
            attrs: dict[str, Attr] = {
                **window,
                "kernel_shape": kernel,
                "reciprocals": (1 << RECIPROCAL_BITS, reciprocal),
            }
            outputs = (int8_name(node.output),)
            name = node.name or node.output
            self.add(Node("NvAveragePool", (self.as_int8(x),), outputs, attrs, name, node.sources))
            return
        multiplier, shift = factor(ratio / (kernel[0] * kernel[1]))
        form = Form(Stage(multiply=1, shift=shift), operands={"x1_mul": few(multiplier)})
        taps = self.constant(f"{int8_name(node.output)}/w", np.ones((channels, 1, *kernel), np.int8))
        attrs = {**window, "group": channels, "average": 1}
        self._emit("NvConv", (self.as_int8(x), taps), node, form, attrs, node.sources)
