"""A pass under construction: its stages, operands and converter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION, LEAKY_ALPHA
from npuc.ops.windows import window_of
from npuc.targets.nvdla.arithmetic.attributes import IDENTITY
from npuc.targets.nvdla.arithmetic.fixed_point import MOST_CONVERTER_SHIFT, factor
from npuc.targets.nvdla.arithmetic.integer import ALU, IDLE, SdpStage

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

    def centred(self, zero: int) -> PassDraft:
        """The form, with the zero point of its map subtracted by the first adder."""
        if zero:
            self.x1 = replace(self.x1, alu=SUM)
            self.operands["x1_alu"] = few(-zero)
        return self

    def converted(self, zero: int) -> tuple[int, int, int]:
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


def few(value: int) -> Array:
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
