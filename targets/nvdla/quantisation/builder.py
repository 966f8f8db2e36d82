"""Walks the float graph once and writes the graph of passes: which nodes a pass computes, and its window.

A convolution's pass includes what its only reader does. The contents of a pass's stages depend on the precision:
Integers and Floats provide them, as drafts of stages, operands and converter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION, LEAKY_ALPHA
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.ops.windows import SELECTION, window_of
from npuc.quantize.network.construction import GraphBuilder, Quantised
from npuc.quantize.scales.constraints import average_kernel
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.nvdla.arithmetic.fixed_point import MOST_CONVERTER_SHIFT, factor
from npuc.targets.nvdla.arithmetic.integer import ALU, IDENTITY, IDLE, SdpStage
from npuc.targets.nvdla.arithmetic.operators import OPERATORS

SUM, MAX, MIN = (ALU.index(name) for name in ("sum", "max", "min"))
COMPARISONS = {"Add": SUM, "Sub": SUM, "Max": MAX, "Min": MIN}
FEW = (1, 1, 1)
"""The shape of an operand kept in a register."""


@dataclass
class PassDraft:
    """A pass under construction."""

    x1: SdpStage = IDLE
    x2: SdpStage = IDLE
    operands: dict[str, Array | str] = field(default_factory=dict[str, "Array | str"])
    """x1_alu, x1_mul, x2_alu, x2_mul, table: constants, or the name of a float tensor."""
    converter: tuple[int, int, int] = IDENTITY
    attrs: dict[str, Attr] = field(default_factory=dict[str, Attr])
    """Further attributes of the node: table placement, truncation of sums."""
    excess: float = 0.0
    """The excess of the converter's input, caused by the zero points of operands."""

    def convert(self, ratio: float) -> PassDraft:
        """Makes the output converter multiply by a ratio."""
        scale, shift = factor(ratio, MOST_CONVERTER_SHIFT)
        while scale and scale % 2 == 0 and shift:
            scale, shift = scale // 2, shift - 1
        self.converter = (0, scale, shift)
        return self

    def limit(self, most: Array) -> bool:
        """Adds an upper limit if a stage is free behind all used ones; returns whether it was added."""
        if "table" in self.operands or (not self.x1.idle and not self.x2.idle):
            return False
        if not self.x2.idle:
            self.operands = {key.replace("x2", "x1"): value for key, value in self.operands.items()}
            self.x1 = self.x2
        self.x2 = SdpStage(MIN)
        self.operands["x2_alu"] = most
        return True

    def subtract_zero(self, zero: int) -> PassDraft:
        """The form, with the zero point of its map subtracted by the first adder."""
        if zero:
            self.x1 = replace(self.x1, alu=SUM)
            self.operands["x1_alu"] = scalar(-zero)
        return self

    def output_converter(self, zero: int) -> tuple[int, int, int]:
        """The converter for a result with this zero point; its input always fits 32 bits."""
        _, scale, shift = self.converter
        offset = round(self.excess - (zero * 2.0**shift / scale if scale else 0.0))
        return offset, scale, shift


def explicit_window(node: Node, kernel: tuple[int, int], graph: Graph) -> dict[str, Attr]:
    """Strides, dilations and the pads that the result's extents imply, whatever ceil_mode says."""
    window = window_of(node, kernel)
    spatial, extents = graph.shape(node.inputs[0])[2:], graph.shape(node.output)[2:]
    ends = (max(end, 0) for end in window.overhang(spatial, extents))
    return {"strides": window.strides, "dilations": window.dilations, "pads": (*window.begins, *ends)}


def relu(node: Node) -> int:
    """1 if a node ends in ReLU, otherwise 0, as a stage's field."""
    return int(ACTIVATION(node) in ("Relu", "Clip"))


def scalar(value: int) -> Array:
    """An operand for a register."""
    return np.full(FEW, value, np.int16)


def slopes(graph: Graph, node: Node) -> Array:
    """The slopes of a PRelu or LeakyRelu as an operand, (1, 1, 1), (C, 1, 1) or (C, H, W)."""
    if node.op == "LeakyRelu":
        return np.full(FEW, LEAKY_ALPHA(node))
    given = graph.constants[node.inputs[1]]
    return given.reshape((-1, 1, 1) if given.ndim < 3 else given.shape[-3:]).astype(np.float64)


def per_channel(constant: Array) -> Array:
    """A constant operand as (C, H, W), (C, 1, 1) or (1, 1, 1)."""
    shape = (1,) * (3 - constant.ndim) + constant.shape
    return constant.reshape(shape[-3:]).astype(np.float64)


@frozen
class FusedPass:
    """A convolution and the node fused into its pass; `last` is the node whose result the pass computes."""

    conv: Node
    last: Node

    @property
    def operand(self) -> str | None:
        """The map that is added, if any."""
        if self.last.op != "Add":
            return None
        first, second = self.last.inputs
        return second if first == self.conv.output else first


def groups(graph: Graph, nodes: Sequence[Node]) -> dict[Node, FusedPass]:
    """The group of every pass of more than one node, by its last node."""
    integer = set(nodes)
    found: dict[Node, FusedPass] = {}
    taken: set[str] = set()
    for node in nodes:
        if node.op not in ("Add", "PRelu", "LeakyRelu"):
            continue
        candidates = [
            graph.producers[name]
            for name in (node.inputs if node.op == "Add" else node.inputs[:1])
            if _joins(graph, node, name, integer) and name not in taken
        ]
        if candidates:
            conv = max(candidates, key=graph.nodes.index)
            taken.add(conv.output)
            found[node] = FusedPass(conv, node)
    return found


def _joins(graph: Graph, node: Node, name: str, integer: set[Node]) -> bool:
    """Whether a tensor is the result of a convolution that can compute the node in its own pass."""
    conv = graph.producers.get(name)
    if conv is None or conv not in integer or conv.op != "Conv" or graph.only_reader(name) is None:
        return False
    if node.op != "Add":
        return not ACTIVATION(conv)
    other = node.inputs[1] if node.inputs[0] == name else node.inputs[0]
    same = other != name and graph.shape(other) == graph.shape(name) == graph.shape(node.output)
    return same and graph.constant(other) is None and ACTIVATION(conv) in ("", "Relu")


MOST_POOL = 8
"""The largest window of PDP, each way."""
OPERANDS = ("x1_alu", "x1_mul", "x2_alu", "x2_mul", "table")


class PassBuilder(GraphBuilder, ABC):
    """Walks the float graph once."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        steps: Mapping[str, Steps],
        dtype: str,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        scales = {name: each.scale for name, each in steps.items()}
        zeros = {name: each.zero for name, each in steps.items()}
        super().__init__(graph, scales, zeros, dtype, OPERATORS, dtypes)
        self.computed = set(nodes)
        self.groups = groups(graph, nodes)
        self.joined = {group.conv for group in self.groups.values()}
        self.copies: dict[tuple[str, str], str] = {}
        """Copies of a tensor, the first, that suit the scale of a result."""

    @abstractmethod
    def elementwise(self, node: Node) -> tuple[str, PassDraft]:
        """The map that goes through SDP, by its name in the new graph, and the pass."""

    @abstractmethod
    def add_slopes(self, node: Node) -> PassDraft:
        """Slopes for negative values in the second stage."""

    @abstractmethod
    def add_map(self, node: Node, operand: str) -> PassDraft:
        """A second stage that adds a map."""

    def operand(self, node: Node, tensor: str) -> str:
        """The map that a sum adds, or a copy of it that suits the result better."""
        del node
        return tensor

    def covers(self, node: Node, name: str) -> bool:
        """Whether an operand has the shape of the result, so that it can go through SDP."""
        return name not in self.float.constants and self.float.shape(name) == self.float.shape(node.output)

    @abstractmethod
    def unit(self, tensor: str) -> float:
        """The scale of values between the stages, if the second one works in steps of the tensor."""

    @abstractmethod
    def weights(self, form: PassDraft, conv: Node, bias: Array | None, unit: float) -> Array:
        """A convolution's stored weights; sets the form's stages to convert sums to steps of `unit`."""

    @abstractmethod
    def close(self, form: PassDraft, last: Node) -> None:
        """Completes the pass of a convolution for its result."""

    @abstractmethod
    def limits(self, form: PassDraft, last: Node) -> PassDraft | None:
        """The pass for limits of the result that a form has no stage for; None if there are none."""

    @abstractmethod
    def average(self, node: Node) -> None:
        """PDP's average, or sums of a convolution."""

    @abstractmethod
    def normalise(self, node: Node) -> None:
        """Local response normalisation."""

    def build(self) -> Quantised:
        """The graph of all nodes. Raises DoesNotFit (E301), with the node, for a constant that is too large."""
        for node in self.float.nodes:
            if node in self.joined:
                continue
            try:
                self.write(node)
            except DoesNotFit as error:
                name = node.source
                raise DoesNotFit.of(replace(each, node=name, op=node.op) for each in error.problems) from None
        return self.result()

    def write(self, node: Node) -> None:
        """Appends the passes of a node."""
        if node not in self.computed:
            self.keep(node)
        elif node.op in CONVERSIONS and self._same(node.inputs[0], node.output):
            self.share(node.output, self.as_int8(node.inputs[0]))
        elif node.op in (*MOVEMENT, *SELECTION):
            self._move(node)
        elif node in self.groups:
            self._group(node, self.groups[node])
        elif node.op == "Conv":
            self._conv(node, node, PassDraft(), self.scales[node.output], relu(node))
        elif node.op in ("AveragePool", "GlobalAveragePool"):
            self.average(node)
        elif node.op == "LRN":
            self.normalise(node)
        else:
            x, form = self.elementwise(node)
            self.finish("NvElementwise", (x,), node, form, {}, node.sources)

    def _same(self, x: str, y: str) -> bool:
        """Whether the integers of two tensors are the same."""
        return self.steps(x) == self.steps(y) and self.dtype_of(x) == self.dtype_of(y)

    def _move(self, node: Node) -> None:
        """Appends a node that selects or moves elements, which is the same in any precision."""
        attrs: dict[str, Attr] = dict(node.attrs)
        op = node.op
        if op == "GlobalMaxPool":
            op, attrs["kernel_shape"] = "MaxPool", average_kernel(self.float, node)
        if op == "Interleave":  # nodes that the host interleaves are not marked
            attrs["on_device"] = 1
        inputs = tuple(self.as_int8(name) for name in node.inputs)
        outputs = tuple(self.int8(name) for name in node.outputs)
        self.add(Node(op, inputs, outputs, attrs, node.name or node.output, node.sources))

    def _group(self, node: Node, group: FusedPass) -> None:
        operand = group.operand
        if operand is None:
            return self._conv(group.conv, node, self.add_slopes(node), self.unit(node.output), x1=0)
        operand = self.operand(node, operand)
        form = self.add_map(node, operand)
        return self._conv(group.conv, node, form, self.unit(operand), x1=relu(group.conv))

    def _conv(self, conv: Node, last: Node, form: PassDraft, unit: float, x1: int) -> None:
        """The pass of a convolution whose first stage gives steps of `unit`, followed by ReLU if x1 is set."""
        x, _, *rest = conv.inputs
        bias = self.float.constants[rest[0]] if rest and rest[0] else None
        weights = self.weights(form, conv, bias, unit)
        if conv is last and form.x2 != IDLE:  # the second stage multiplies to the result's scale
            form.x2 = replace(form.x2, relu=x1)
        else:
            form.x1 = replace(form.x1, relu=x1)
        self.close(form, last)
        sources = tuple(dict.fromkeys((*conv.sources, *last.sources)))
        stored = self.constant(self.part(self.int8(conv.output), "w"), weights)
        self.sources[stored] = conv.output
        self.finish("NvConv", (self.read(conv, weights), stored), last, form, self._window(conv, x), sources)

    def read(self, conv: Node, weights: Array) -> str:
        """The map that a convolution with these weights reads."""
        del weights
        return self.as_int8(conv.inputs[0])

    def _window(self, node: Node, x: str) -> dict[str, Attr]:
        """The attributes of a convolution's window, including the padding value of x."""
        keys = ("strides", "pads", "dilations", "group")
        window = {key: node.attrs[key] for key in keys if key in node.attrs}
        return {**window, **self.padding(x, window)}

    def padding(self, x: str, window: Mapping[str, Attr]) -> dict[str, Attr]:
        """The padding value of x, if there is padding and it is not 0."""
        pads = window.get("pads", ())
        return {"padding": self.zeros[x]} if self.zeros[x] and isinstance(pads, tuple) and any(pads) else {}

    def finish(
        self,
        op: str,
        inputs: tuple[str, ...],
        last: Node,
        form: PassDraft,
        window: Mapping[str, Attr],
        sources: tuple[str, ...],
    ) -> None:
        """Emits the pass, and another one for limits of the result that it has no stage for."""
        name, limits = self.int8(last.output), self.limits(form, last)
        if limits is None:
            return self.emit(op, inputs, name, last, form, window, sources)
        free = self.unlimited_result(name, last.output)
        self.emit(op, inputs, free, last, form, window, sources)
        return self.emit("NvElementwise", (free,), name, last, limits, {}, sources, "/limits")

    def unlimited_result(self, name: str, tensor: str) -> str:
        """The name of a result before its limits. tensor: the result in the float graph."""
        del tensor
        return self.fresh(f"{name}/unlimited")

    def emit(
        self,
        op: str,
        inputs: tuple[str, ...],
        output: str,
        last: Node,
        form: PassDraft,
        window: Mapping[str, Attr],
        sources: tuple[str, ...],
        suffix: str = "",
    ) -> None:
        """Appends a pass; inputs and output: names in the new graph; last: the float node that it computes."""
        attrs: dict[str, Attr] = {**window, **form.attrs}
        attrs |= {"x1": form.x1.as_attr(), "x2": form.x2.as_attr(), "converter": form.converter}
        extra = tuple(self._operand(output, key, form.operands.get(key)) for key in OPERANDS)
        name = (last.name or last.output) + suffix
        self.add(Node(op, (*inputs, *extra), (output,), attrs, name, sources))

    def emit_lrn(self, node: Node, le: Array, lo: Array, attrs: dict[str, Attr]) -> None:
        """Appends a normalisation with its table entries."""
        y = self.int8(node.output)
        entries = (self.constant(self.part(y, name), values) for name, values in (("le", le), ("lo", lo)))
        inputs = (self.as_int8(node.inputs[0]), *entries)
        self.add(Node("NvLrn", inputs, (y,), attrs, node.name or node.output, node.sources))

    def _operand(self, output: str, key: str, value: Array | str | None) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            return self.as_int8(value)
        return self.constant(self.part(output, key), value)

    def part(self, output: str, key: str) -> str:
        """The stem of the name of a constant of the pass that computes a tensor."""
        return f"{output}/fp16/{key}" if self.dtype == "float32" else f"{output}/{key}"
