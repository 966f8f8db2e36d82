"""Walks the float graph once, and writes the integer graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.windows import window_of
from npuc.quantize.draft import Quantised, int8_name
from npuc.quantize.given import Steps
from npuc.quantize.tables import CONVERSIONS
from npuc.quantize.ties import MOVEMENT, SELECTION, average_kernel
from npuc.targets.nvdla.fixed_point import FRACTION, addends, factor, quantise_weights
from npuc.targets.nvdla.integer import IDLE, RECIPROCAL_BITS, Stage
from npuc.targets.nvdla.quantisation.elementwise import Elementwise
from npuc.targets.nvdla.quantisation.form import FEW, MAX, MIN, SUM, Form, explicit_window, few, relu
from npuc.targets.nvdla.quantisation.groups import Group, groups
from npuc.targets.nvdla.quantisation.kept_weights import COLUMN, kept, stages_of

MOST_POOL = 8
"""The largest window of PDP, each way."""
LEAST_RECIPROCAL = 256
"""Of the smallest reciprocal with which PDP averages: its rounding costs at most 1/4 step of the result."""


class Builder(Elementwise):
    """Walks the float graph once."""

    def __init__(
        self, graph: Graph, nodes: Sequence[Node], steps: Mapping[str, Steps], given: Collection[str]
    ) -> None:
        super().__init__(
            graph,
            {name: each.scale for name, each in steps.items()},
            {name: each.zero for name, each in steps.items()},
        )
        self.given = given
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
            elif node.op in CONVERSIONS and self.steps(node.inputs[0]) == self.steps(node.output):
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
            return self._conv(group.conv, node, self.sloped(node), y * 2.0**-FRACTION, x1=0)
        form, unit = self.added(node, operand), self.scales[operand] * 2.0**-FRACTION
        return self._conv(group.conv, node, form, unit, x1=relu(group.conv))

    def _conv(self, conv: Node, last: Node, form: Form, unit: float, x1: int) -> None:
        """The pass of a convolution whose first stage gives steps of `unit`, with ReLU if x1 says so."""
        x, w, *rest = conv.inputs
        bias = self.float.constants[rest[0]] if rest and rest[0] else None
        weights = self._weights(form, x, self.float.constants[w], bias, unit)
        if conv is last and form.x2 != IDLE:  # the multiplier of the result is that of the second stage
            form.x2 = replace(form.x2, relu=x1)
        else:
            form.x1 = replace(form.x1, relu=x1)
        if form.x2 == IDLE and (most := self.limits(last)[1]) < 127:
            form.x2 = Stage(MIN)
            form.operands["x2_alu"] = few(most - self.zeros[last.output])
        sources = tuple(dict.fromkeys((*conv.sources, *last.sources)))
        inputs = self.as_int8(x), self.constant(f"{int8_name(conv.output)}/w", weights)
        form.converter = form.converted(self.zeros[last.output])
        self._finish("NvConv", inputs, last, form, self._window(conv, x), sources)

    def _weights(self, form: Form, x: str, w: Array, bias: Array | None, unit: float) -> Array:
        """The integers of the weights; the form gets the stages that make steps of `unit` of their sums."""
        steps = self.steps(x)
        sums = kept(w, bias, steps.scale, steps.zero, unit) if x in self.given else None
        if sums is None:
            found = quantise_weights(w, bias, steps.scale, unit, steps.zero)
            form.x1 = Stage(SUM, found.bias_shift, 1, 0, found.shift)
            form.operands |= {"x1_alu": found.bias.reshape(COLUMN), "x1_mul": found.multiplier.reshape(COLUMN)}
            return found.w
        form.x1, second, operands = stages_of(sums, free=form.x2 == IDLE)
        form.operands |= operands
        form.x2 = form.x2 if second == IDLE else second
        return sums.w

    def _window(self, node: Node, x: str) -> dict[str, Attr]:
        """The attributes of a convolution's window, and the integer that surrounds x."""
        keys = ("strides", "pads", "dilations", "group")
        window = {key: node.attrs[key] for key in keys if key in node.attrs}
        return {**window, **self._padding(x, window)}

    def _padding(self, x: str, window: Mapping[str, Attr]) -> dict[str, Attr]:
        pads = window.get("pads", ())
        return {"padding": self.zeros[x]} if self.zeros[x] and isinstance(pads, tuple) and any(pads) else {}

    def _finish(
        self,
        op: str,
        inputs: tuple[str, ...],
        last: Node,
        form: Form,
        window: Mapping[str, Attr],
        sources: tuple[str, ...],
    ) -> None:
        """The pass, and another for the limits of the result that it has no stage for."""
        low, high = self.limits(last)
        lower = low > -128 and not (form.x2.relu or (form.x2.alu in (0, MIN) and form.x1.relu))
        upper = high < 127 and form.x2.alu != MIN
        if not lower and not upper:
            return self.emit(op, inputs, int8_name(last.output), last, form, window, sources)
        free = f"{int8_name(last.output)}/unlimited"
        self.stand(free, last.output)
        self.emit(op, inputs, free, last, form, window, sources)
        limits = Form(Stage(MAX), Stage(MIN), {"x1_alu": few(low), "x2_alu": few(high)})
        name = int8_name(last.output)
        return self.emit("NvElementwise", (free,), name, last, limits, {}, sources, "/limits")

    def _single(self, node: Node) -> None:
        """A pass of one node."""
        if node.op == "Conv":
            return self._conv(node, node, Form(), self.scales[node.output], relu(node))
        if node.op in ("AveragePool", "GlobalAveragePool"):
            return self._average(node)
        x, form = self.elementwise(node)
        return self._finish("NvElementwise", (x,), node, form, {}, node.sources)

    def _average(self, node: Node) -> None:
        """PDP's average where its window reaches; sums of a convolution for larger ones and other zero points."""
        kernel, x = average_kernel(self.float, node), node.inputs[0]
        (x_scale, x_zero), (y_scale, y_zero) = (
            (each.scale, each.zero) for each in map(self.steps, (x, node.output))
        )
        ratio, count = x_scale / y_scale, kernel[0] * kernel[1]
        window = {} if node.op.startswith("Global") else explicit_window(node, kernel, self.float)
        window |= self._padding(x, window)
        reciprocal = round(ratio / count * 2**RECIPROCAL_BITS)
        if (
            max(kernel) <= MOST_POOL
            and max(window_of(node, kernel).begins) < MOST_POOL
            and 64 <= reciprocal < 1 << 17
            and (ratio == 1 or not x_zero)
            and x_zero == y_zero
        ):
            reciprocals = 1 << RECIPROCAL_BITS, reciprocal
            attrs: dict[str, Attr] = {**window, "kernel_shape": kernel, "reciprocals": reciprocals}
            outputs = (int8_name(node.output),)
            name = node.name or node.output
            self.add(Node("NvAveragePool", (self.as_int8(x),), outputs, attrs, name, node.sources))
            return
        multiplier, shift = factor(ratio / count)
        form = Form(Stage(multiply=1, shift=shift), operands={"x1_mul": few(multiplier)})
        if x_zero:
            offset, left = addends(np.full(FEW, -x_zero * count))
            form.x1 = replace(form.x1, alu=SUM, alu_shift=left)
            form.operands["x1_alu"] = offset
        form.converter = form.converted(y_zero)
        channels = self.float.shape(x)[1]
        taps = self.constant(f"{int8_name(node.output)}/w", np.ones((channels, 1, *kernel), np.int8))
        attrs = {**window, "group": channels, "average": 1}
        self._finish("NvConv", (self.as_int8(x), taps), node, form, attrs, node.sources)
