"""Recurrent networks as the operators of every step.

Source: ONNX, LSTM, GRU and RNN. The gates are in the order i, o, f, c of an LSTM, and z, r, h of a GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode
from npuc.frozen import frozen
from npuc.ir import Attr

ACTIVATIONS = ("Sigmoid", "Tanh", "Relu")
"""Those without parameters."""
CHANGING = ("clip", "input_forget", "layout")
"""Attributes with which a step is another one than written here."""
MOST_STEPS = 64
"""The most steps that are spelled out; each takes some 15 nodes."""
BIAS, LENGTHS, STATE, CELL, PEEPHOLES = 3, 4, 5, 6, 7
"""The places of the optional inputs."""
REMEDY = "export the network with its defaults and for sequences of one length"


@frozen
class _Direction:
    """One direction of a layer. All tensors have the shape (batch, gates * hidden)."""

    node: OnnxNode
    to: NodeBuilder
    hidden: int
    recurrent: Mapping[int, str]
    """The recurrent weights (hidden, gates * hidden) of the gates from this one on, in one product."""
    bias: str
    """Of a GRU that multiplies the recurrent product of its state by a gate: the bias of this product."""
    activations: tuple[str, ...]

    def emit(self, op: str, *inputs: str, **attrs: Attr) -> str:
        """The result of an operator."""
        return self.to.emit(self.node, op, inputs, (), **attrs)

    def plus_product(self, x: str, state: str, first: int = 0) -> str:
        """x plus the state times the recurrent weights of the gates from `first` on."""
        return self.emit("Add", x, self.emit("MatMul", state, self.recurrent[first])) if state else x

    def part(self, gates: str, first: int, behind: int) -> str:
        """Some of the gates, which are side by side."""
        ends = {"starts": (first * self.hidden,), "ends": (behind * self.hidden,)}
        return self.emit("Slice", gates, axes=(1,), steps=(1,), **ends)


State = tuple[str, ...]
"""The state, and the cell of an LSTM; "" for zeros."""


def _lstm(layer: _Direction, x: str, state: State) -> State:
    h, c = state
    f, g, last = layer.activations
    gates = layer.plus_product(x, h)
    opened = layer.emit(f, layer.part(gates, 0, 3))
    i, o, kept = (layer.part(opened, each, each + 1) for each in range(3))
    cell = layer.emit("Mul", i, layer.emit(g, layer.part(gates, 3, 4)))
    cell = layer.emit("Add", layer.emit("Mul", kept, c), cell) if c else cell
    return layer.emit("Mul", o, layer.emit(last, cell)), cell


def _gru(layer: _Direction, x: str, state: State) -> State:
    (h,) = state
    f, g = layer.activations
    gates = layer.emit(f, layer.plus_product(layer.part(x, 0, 2), h))
    z, r = layer.part(gates, 0, 1), layer.part(gates, 1, 2)
    new = layer.part(x, 2, 3)
    if layer.bias:
        inner = layer.plus_product(layer.bias, h, 2)
        new = layer.emit("Add", new, layer.emit("Mul", r, inner))
    elif h:
        new = layer.plus_product(new, layer.emit("Mul", r, h), 2)
    new = layer.emit(g, new)
    change = layer.emit("Sub", h, new) if h else layer.emit("Neg", new)
    return (layer.emit("Add", new, layer.emit("Mul", z, change)),)


def _rnn(layer: _Direction, x: str, state: State) -> State:
    return (layer.emit(layer.activations[0], layer.plus_product(x, state[0])),)


@frozen
class _Cell:
    """A kind of recurrent network."""

    gates: int
    activations: tuple[str, ...]
    """The defaults."""
    products: tuple[int, ...]
    """The first gate of every recurrent product."""
    step: Callable[[_Direction, str, State], State]


CELLS = {
    "LSTM": _Cell(4, ("Sigmoid", "Tanh", "Tanh"), (0,), _lstm),
    "GRU": _Cell(3, ("Sigmoid", "Tanh"), (0, 2), _gru),
    "RNN": _Cell(1, ("Tanh",), (0,), _rnn),
}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Whether a direction goes backwards."""


def _recurrent(node: OnnxNode, to: NodeBuilder) -> None:
    """x W + b for all steps at once, then step after step; directions are joined at the end."""
    _expect_usual(node, to)
    backwards = DIRECTIONS[node.attrs["direction"]]
    found = [_direction(node, to, at, turned=turned) for at, turned in enumerate(backwards)]
    for number, name in enumerate(node.outputs):
        if name:
            _join(node, to, [each[number] for each in found], name)


def _expect_usual(node: OnnxNode, to: NodeBuilder) -> None:
    """Raises UnsupportedOperator for what has no form in steps, E106 for computed weights."""
    x = to.shape(node.inputs[0])
    if not 0 < x[0] <= MOST_STEPS or 0 in x:
        raise node.support_error(f"the input is {list(x)}", REMEDY, limit=f"1..{MOST_STEPS} steps")
    for each in _activations(node):
        if each not in ACTIVATIONS:
            raise node.support_error(f"the activation is {each}", REMEDY, limit=", ".join(ACTIVATIONS))
    for name in CHANGING:
        if node.attrs.get(name):
            raise node.support_error(f"the attribute {name} is {node.attrs[name]}", REMEDY, limit=f"no {name}")
    for place, name in ((LENGTHS, "sequence_lens"), (PEEPHOLES, "P (peepholes)")):
        if node.has_input(place):
            raise node.support_error(f"it has the input {name}", REMEDY, limit="X, W, R, B and initial states")
    for at in (1, 2, *((BIAS,) if node.has_input(BIAS) else ())):
        to.value(node, at)


def _activations(node: OnnxNode) -> tuple[str, ...]:
    """Of all directions, one after the other."""
    usual = CELLS[node.op].activations * len(DIRECTIONS[node.attrs["direction"]])
    return tuple(node.attrs.get("activations") or usual)


def _direction(node: OnnxNode, to: NodeBuilder, at: int, *, turned: bool) -> list[list[str]]:
    """For every output, tensors (batch, hidden): of each step in the order of the input, or of the last step."""
    layer, weights, bias = _layer(node, to, at)
    steps, batch, features = to.shape(node.inputs[0])
    rows = layer.emit("Reshape", node.inputs[0], shape=(steps * batch, features))
    products = layer.emit("MatMul", rows, weights)
    products = layer.emit("Add", products, bias) if bias else products
    state = tuple(_initial(node, to, place, at) for place in (STATE, CELL)[: 2 if node.op == "LSTM" else 1])
    hidden: dict[int, str] = {}
    for step in reversed(range(steps)) if turned else range(steps):
        first, behind = step * batch, (step + 1) * batch
        gates = layer.emit("Slice", products, axes=(0,), starts=(first,), ends=(behind,), steps=(1,))
        state = CELLS[node.op].step(layer, gates, state)
        hidden[step] = state[0]
    return [[hidden[step] for step in range(steps)], *([each] for each in state)]


def _layer(node: OnnxNode, to: NodeBuilder, at: int) -> tuple[_Direction, str, str]:
    """A direction, its weights (input, gates * hidden) and their bias, or ""."""
    cell, (w, r) = CELLS[node.op], (to.value(node, place)[at] for place in (1, 2))
    hidden = r.shape[1]
    count = cell.gates * hidden
    both = to.value(node, BIAS)[at] if node.has_input(BIAS) else np.zeros(2 * count, np.float32)
    own, recurrent = both[:count].copy(), both[count:].copy()
    reset = bool(node.attrs.get("linear_before_reset"))
    inner = recurrent[2 * hidden :].copy()
    if reset:
        recurrent[2 * hidden :] = 0
    ends = [*(first * hidden for first in cell.products), count]
    parts = {
        first: to.constant(node, f"recurrent_{first}", np.ascontiguousarray(r[begin:end].T))
        for first, begin, end in zip(cell.products, ends, ends[1:], strict=False)
    }
    activations = _activations(node)[at * len(cell.activations) :][: len(cell.activations)]
    weights = to.constant(node, "weights", np.ascontiguousarray(w.T))
    bias = to.constant(node, "bias", own + recurrent) if node.has_input(BIAS) else ""
    layer = _Direction(
        node, to, hidden, parts, to.constant(node, "inner", inner[None]) if reset else "", activations
    )
    return layer, weights, bias


def _initial(node: OnnxNode, to: NodeBuilder, place: int, at: int) -> str:
    """The state (batch, hidden) before the first step, or "" for zeros."""
    if not node.has_input(place):
        return ""
    name = node.inputs[place]
    if name in to.constants and not to.constants[name].any():
        return ""
    cut = to.emit(node, "Slice", (name,), (), axes=(0,), starts=(at,), ends=(at + 1,), steps=(1,))
    return to.emit(node, "Reshape", (cut,), (), shape=to.shape(name)[1:])


def _join(node: OnnxNode, to: NodeBuilder, tensors: Sequence[Sequence[str]], name: str) -> None:
    """An output of all directions: (steps, directions, batch, hidden), or without steps."""
    batch, hidden = to.shape(tensors[0][0])
    parts = [each for step in zip(*tensors, strict=True) for each in step]
    rows = [to.emit(node, "Reshape", (each,), (), shape=(1, batch, hidden)) for each in parts]
    joined = to.emit(node, "Concat", rows, (), axis=0) if len(rows) > 1 else rows[0]
    steps = (len(tensors[0]),) if name == node.outputs[0] else ()
    to.emit(node, "Reshape", (joined,), (name,), shape=(*steps, len(tensors), batch, hidden))


IMPORTERS: dict[str, Importer] = dict.fromkeys(CELLS, _recurrent)
