"""An integer network for onnxruntime, in float32 or in uint8: nodes, constants, and the session.

uint8 values are int8 values plus 128. onnxruntime's QLinearConv rounds half to even, so scales are 2^-n plus one
unit in the last place: a half, which is never negative here, is then rounded up, and no other result changes.
Source: arithmetic, whose sums are exact below 2^24 and whose scales are powers of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from npuc.ir import Array
from npuc.reference import integers_are_exact, session
from npuc.targets.easynpu.machine.memory import LANES, groups
from npuc.targets.easynpu.simulate.merging import Merging, Operator
from npuc.targets.easynpu.simulate.origins import NotOneNetwork, Value, ValuePart, Words

MOST_BYTES = 1 << 26
"""Limit of the constants, which are float32 and take memory in addition to the program's own."""
MOST_NODES = 1 << 14
MOST_TILES = 1 << 16
"""Limit of the operators before tiles are merged."""
RAISED = 128
"""The offset of uint8 values."""
FINEST = -14
"""The exponent of the finest scale at which the last bit of a factor is smaller than the gap between results."""
FINEST_POSITIVE = -15
"""The same where results are at most 127."""


class Network:
    """Collects ONNX nodes; every value is (N, C, H, W).

    quantised: whether products use onnxruntime's uint8 and int8 arithmetic.
    """

    def __init__(self, *, quantised: bool) -> None:
        self.quantised = quantised
        self.values: list[Value] = []
        self.inputs: list[Any] = []
        self.outputs: dict[str, Any] = {}
        self._operators: list[Operator] = []
        self._constants: dict[tuple[bytes, np.dtype[Any], tuple[int, ...]], str] = {}
        self._held: dict[str, Array] = {}
        self._bytes = 0
        self._cut: dict[ValuePart, Value] = {}
        self._other: dict[int, Value] = {}
        self._window: dict[int, ValuePart] = {}
        """The window that each cut value is, by number."""
        self._reshaped: dict[str, str] = {}
        """What each reshaped tensor was before."""

    def value(self, name: str, channels: int, height: int, width: int, *, raised: bool = False) -> Value:
        """A value with these extents. raised: it is uint8."""
        self.values.append(Value(len(self.values), name, channels, height, width, raised))
        return self.values[-1]

    def like(self, name: str, value: Value, *, raised: bool = False) -> Value:
        """A value with the extents of another."""
        return self.value(name, value.channels, value.height, value.width, raised=raised)

    def floats(self, value: Value) -> Value:
        """The value in float32."""
        from onnx import TensorProto

        if not value.bytes:
            return value
        if value.number not in self._other:
            name = self.node("Cast", value.name, to=TensorProto.FLOAT)
            self._other[value.number] = self.like(self.node("Sub", name, self.scalar(RAISED)), value)
        return self._other[value.number]

    def raised(self, value: Value) -> Value:
        """The value in uint8."""
        from onnx import TensorProto

        if value.bytes:
            return value
        if value.number not in self._other:
            name = self.node("Add", value.name, self.scalar(RAISED))
            found = self.like(self.node("Cast", name, to=TensorProto.UINT8), value, raised=True)
            self._other[value.number] = found
        return self._other[value.number]

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The output tensor of a new node. Raises NotOneNetwork beyond MOST_TILES nodes."""
        if len(self._operators) >= MOST_TILES:
            raise NotOneNetwork(f"it has more than {MOST_TILES} operators")
        name, domain = f"t{len(self._operators)}", attributes.pop("domain", "")
        self._operators.append(Operator(op, inputs, name, attributes, domain))
        return name

    def constant(self, value: Array, *, counted: bool = True) -> str:
        """The tensor of a constant, which equal ones share. Raises NotOneNetwork beyond MOST_BYTES in total.

        counted: False for one that takes the place of others.
        """
        value = np.asarray(value, order="C")
        key = value.tobytes(), value.dtype, value.shape
        if key not in self._constants:
            self._bytes += value.nbytes * counted
            if self._bytes > MOST_BYTES:
                raise NotOneNetwork(f"its constants take more than {MOST_BYTES} bytes")
            self._constants[key] = f"c{len(self._constants)}"
            self._held[self._constants[key]] = value
        return self._constants[key]

    def scalar(self, value: float) -> str:
        """A float32 constant without dimensions."""
        return self.constant(np.array(value, np.float32))

    def byte(self, value: int) -> str:
        """A uint8 constant without dimensions."""
        return self.constant(np.array(value, np.uint8))

    def given(self, name: str, channels: int, height: int, width: int) -> Value:
        """Adds an input of the network, in uint8."""
        from onnx import TensorProto, helper

        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.UINT8, ["N", channels, height, width]))
        return self.value(name, channels, height, width, raised=True)

    def input(self, shape: Sequence[int]) -> str:
        """Adds a float32 input (N, *shape) of the network; returns its tensor."""
        from onnx import TensorProto, helper

        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape]))
        return name

    def output(self, tensor: str, shape: Sequence[int]) -> str:
        """Adds a tensor as a float32 output (N, *shape) of the network; returns the output."""
        from onnx import TensorProto, helper

        name = f"y{len(self.outputs)}"
        self._operators.append(Operator("Identity", (tensor,), name, {}))
        self.outputs[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
        return name

    def reshaped(self, tensor: str, shape: Sequence[int]) -> str:
        """A tensor (N, ...) as (N, *shape)."""
        source = self._reshaped.get(tensor, tensor)
        name = self.node("Reshape", source, self.constant(np.array([-1, *shape])))
        self._reshaped[name] = source
        return name

    def gives(self, name: str, value: Value) -> None:
        """Adds an output of the network, in uint8."""
        from onnx import TensorProto, helper

        shape = ["N", value.channels, value.height, value.width]
        self._operators.append(Operator("Identity", (self.raised(value).name,), name, {}))
        self.outputs[name] = helper.make_tensor_value_info(name, TensorProto.UINT8, shape)

    def convolution(
        self, x: Value, weights: Array, bias: Array, scale: Array, attributes: Mapping[str, Any], *, relu: bool
    ) -> str:
        """Sums of products with int8 weights, and bias, times 2^scale, rounded half up and saturated, in uint8.

        scale: (Co,) from FINEST to 0, with relu from FINEST_POSITIVE. Sums, raised or not, are below 2^31; float32
        does not represent all of those from 2^24 on, but these are saturated. relu: negative results may be
        rounded differently.
        """
        shifts = -scale.astype(np.int64)
        factors = np.ldexp(np.float32(1) + np.finfo(np.float32).eps, -shifts).astype(np.float32)
        raised = 0 if relu else RAISED
        inputs = (
            *(self.raised(x).name, self.scalar(1), self.byte(RAISED)),
            *(self.constant(weights), self.constant(factors), self.constant(np.zeros(len(weights), np.int8))),
            *(self.scalar(1), self.byte(RAISED - raised)),
            self.constant((bias.astype(np.int64) + (raised << shifts)).astype(np.int32)),
        )
        return self.node("QLinearConv", *inputs, **attributes)

    def sums(self, products: Iterable[tuple[Value, Array, Mapping[str, Any]]], bias: Array) -> str:
        """The sum of convolutions without bias, and a bias: int32, in float32.

        products: maps, weights and attributes. float32 does not represent all sums from 2^24 on, but at the
        scales of `convolution` these are saturated.
        """
        from onnx import TensorProto

        name, *others = (
            self.node("ConvInteger", self.raised(x).name, self.constant(w), self.byte(RAISED), **attributes)
            for x, w, attributes in products
        )
        for other in (*others, self.constant(bias.astype(np.int32).reshape(-1, 1, 1))):
            name = self.node("Add", name, other)
        return self.node("Cast", name, to=TensorProto.FLOAT)

    def rounded(self, name: str, scale: Array, lowest: int) -> str:
        """Sums in float32 times their powers of two, rounded half up and saturated. Raises NotOneNetwork."""
        if scale.min() < -31 or scale.max() > 0:
            raise NotOneNetwork("a left shift")
        power, half = factors(scale)
        if scale.any():
            name = self.node("Mul", name, self.constant(power.reshape(-1, 1, 1)))
            name = self.node("Add", name, self.constant(half.reshape(-1, 1, 1)))
        name = self.node("Clip", name, self.scalar(lowest), self.scalar(127))
        return self.node("Floor", name) if scale.any() else name

    def sum(self, x: Value, y: Value, shift: int) -> str:
        """(x + y) * 2^-shift, rounded half up and saturated, in uint8; shift: 0 to 8.

        The sum of raised values is never negative, and the factor makes a half slightly more than a half.
        """
        factor = np.ldexp(1 + (2.0**-12 if shift else 0.0), -shift)
        of_operand, of_result = (0, RAISED - (2 * RAISED >> shift)) if shift else (RAISED, RAISED)
        inputs = [
            part
            for each in (x, y)
            for part in (self.raised(each).name, self.scalar(factor), self.byte(of_operand))
        ]
        return self.node("QLinearAdd", *inputs, self.scalar(1), self.byte(of_result), domain="com.microsoft")

    def cut(self, window: ValuePart) -> Value:
        """The part of a value, as a value."""
        value, whole = window.value, (window.value.channels, window.value.height, window.value.width)
        if window not in self._cut:
            axes = [at for at in range(3) if window.extents[at] != whole[at]]
            name = value.name
            if axes:
                starts = np.array([window.start[at] for at in axes])
                ends = starts + [window.extents[at] for at in axes]
                name = self.node("Slice", name, *map(self.constant, (starts, ends, np.array(axes) + 1)))
            found = self.value(name, *window.extents, raised=value.bytes) if axes else value
            self._cut[window] = found
            self._window.setdefault(found.number, window)
        return self._cut[window]

    def words(self, value: Value) -> Words:
        """The words of a value, or of the value that it is cut from where these have the same lanes."""
        window = self._window.get(value.number)
        if window is None or window.value == value:
            return value.everything
        (first, row, column), end = window.start, window.start[0] + value.channels
        if first % LANES or (end % LANES and end != window.value.channels):
            return value.everything
        of = self.words(window.value)
        at = np.s_[row : row + value.height, column : column + value.width, first // LANES : groups(end)]
        return Words(of.number[at], of.word[at], value.channels)

    def joined(self, axis: int, parts: Sequence[Value]) -> Value:
        """Values concatenated along an axis of their tensors. Raises NotOneNetwork if other extents differ."""
        if (window := self._around(axis, parts)) is not None:
            return self.cut(window)
        extents = [(each.channels, each.height, each.width) for each in parts]
        others = {each[: axis - 1] + each[axis:] for each in extents}
        if len(others) > 1:
            raise NotOneNetwork("the parts of a map have different extents")
        whole = list(extents[0])
        whole[axis - 1] = sum(each[axis - 1] for each in extents)
        raised = any(each.bytes for each in parts)
        names = [(self.raised(each) if raised else each).name for each in parts]
        return self.value(self.node("Concat", *names, axis=axis), *whole, raised=raised)

    def _around(self, axis: int, parts: Sequence[Value]) -> ValuePart | None:
        """The window that these parts were cut from along an axis, if they are neighbours in one value."""
        windows = [self._window.get(each.number) for each in parts]
        first, at = windows[0], axis - 1
        if first is None:
            return None
        start, extents = [*first.start], [*first.extents]
        extents[at] = 0
        for each in windows:
            start[at] = first.start[at] + extents[at]
            if each is None or each.value != first.value or [*each.start] != start:
                return None
            if each.extents[:at] + each.extents[at + 1 :] != first.extents[:at] + first.extents[at + 1 :]:
                return None
            extents[at] += each.extents[at]
        return ValuePart(first.value, first.start, (extents[0], extents[1], extents[2]))

    def session(self) -> Any:
        """An onnxruntime session of the network. Raises NotOneNetwork beyond MOST_NODES operators."""
        from onnx import helper, numpy_helper

        operators = self._merged()
        if len(operators) > MOST_NODES:
            raise NotOneNetwork(f"it has more than {MOST_NODES} operators")
        if any(min(each.attributes.get("pads", [0])) < 0 for each in operators):
            raise NotOneNetwork("all windows of an operator lie in the padding")
        nodes, used = self._with_own_weights(operators)
        held = [numpy_helper.from_array(value, name) for name, value in used.items()]
        graph = helper.make_graph(nodes, "program", self.inputs, [*self.outputs.values()], held)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
            ir_version=8,
        )
        return session(model, precise=not (self.quantised and integers_are_exact(precise=False)))

    def _needed(self) -> list[Operator]:
        """The operators without those that no output depends on."""
        needed, found = {*self.outputs}, list[Operator]()
        for each in reversed(self._operators):
            if each.output in needed:
                needed.update(each.inputs)
                found.append(each)
        return found[::-1]

    def _merged(self) -> Sequence[Operator]:
        """The operators, on whole maps where that is possible."""
        operators = self._needed()
        extents = {each.name: (each.channels, each.height, each.width) for each in self.values}
        for over_channels in (True, False):
            merged = Merging(extents, self._held, partial(self.constant, counted=False), over_channels).merged(
                operators
            )
            if merged is not None:
                return merged
        return operators

    def _with_own_weights(self, operators: Sequence[Operator]) -> tuple[list[Any], dict[str, Array]]:
        """The ONNX nodes, and their constants.

        Each node has its own int8 constants, which onnxruntime changes for a product where quick ones saturate.
        """
        from onnx import helper

        nodes: list[Any] = []
        used: dict[str, Array] = {}
        for each in operators:
            inputs = [*each.inputs]
            for at, name in enumerate(inputs):
                if name in self._held:
                    value = self._held[name]
                    inputs[at] = f"{name}_{each.output}_{at}" if value.dtype == np.int8 else name
                    used[inputs[at]] = value
            if each.op == "Gather" and not each.attributes:
                used[FLAT] = np.array([-1])
                nodes += _looked_up(inputs[0], inputs[1], each.output)
            else:
                outputs = [each.output]
                nodes.append(helper.make_node(each.op, inputs, outputs, domain=each.domain, **each.attributes))
        return nodes, used


FLAT = "flat"
"""The shape of a single axis."""


def _looked_up(entries: str, indices: str, output: str) -> list[Any]:
    """A Gather from a table as a GatherElements, which takes a sixth of its time under onnxruntime."""
    from onnx import helper

    shape, flat, found = (f"{output}_{each}" for each in ("shape", "flat", "found"))
    return [
        helper.make_node("Shape", [indices], [shape]),
        helper.make_node("Reshape", [indices, FLAT], [flat]),
        helper.make_node("GatherElements", [entries, flat], [found]),
        helper.make_node("Reshape", [found, shape], [output]),
    ]


def factors(scale: Array) -> tuple[Array, Array]:
    """Powers of two of scales, and the halves added before a result is rounded down."""
    return np.ldexp(np.float32(1), scale.astype(np.int32)), np.where(scale < 0, np.float32(0.5), np.float32(0))
