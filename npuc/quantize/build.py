"""The integer graph: which tensors become int8, at which scale, and the integer operators between them.

A node is integer where the target runs it so; data movement is integer between integer nodes. QuantizeLinear
and DequantizeLinear stand where the two worlds meet. The int8 form of tensor `t` is named `t/int8`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from npuc.errors import DoesNotFit, UnsupportedOperator
from npuc.ir import Array, Attr, Graph, Node
from npuc.quantize.calibration import Spread
from npuc.quantize.draft import Draft, Quantised, int8_name
from npuc.quantize.integer import accumulator_bound
from npuc.quantize.scales import Ratio, Ties, choose_scales
from npuc.quantize.tables import Tabulate, as_unary, is_relu, wanted_values
from npuc.quantize.weights import (
    ACCUMULATOR_LIMIT,
    LARGEST_WEIGHT,
    MOST_SHIFT,
    average_taps,
    quantise_weights,
)

MOVEMENT = ("Reshape", "Transpose", "Concat", "Slice", "Split", "SpaceToDepth", "DepthToSpace", "Identity")
"""Operators that only move elements: the same on int8, if all their tensors share one scale."""

SELECTION = ("MaxPool", "GlobalMaxPool")
"""Operators whose every result is one of their elements."""


def integer_nodes(graph: Graph, accepts: Callable[[Node], bool]) -> tuple[Node, ...]:
    """The nodes that run on int8: those the target accepts, and data movement from such to such."""
    after: set[str] = set()
    forward: list[Node] = []
    for node in graph.nodes:
        computed = [name for name in node.inputs if name not in graph.constants]
        moves = node.op in MOVEMENT and all(name in after for name in computed)
        if moves or accepts(node):
            after.update(node.outputs)
            forward.append(node)
    before: set[str] = set()
    kept: list[Node] = []
    for node in reversed(forward):
        if node.op not in MOVEMENT or before.intersection(node.outputs):
            before.update(data_inputs(node))
            kept.append(node)
    return tuple(reversed(kept))


def data_inputs(node: Node) -> tuple[str, ...]:
    """The inputs that carry activations."""
    return node.inputs[:1] if node.op in ("Conv", "PRelu") else node.inputs


def tensors_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The float tensors that get an int8 form, in order of appearance."""
    found = dict.fromkeys(name for node in nodes for name in (*data_inputs(node), *node.outputs))
    return tuple(found)


def average_kernel(graph: Graph, node: Node) -> tuple[int, int]:
    """The window of an average or global pooling node."""
    if node.op.startswith("Global"):
        height, width = graph.shape(node.inputs[0])[2:]
        return height, width
    height, width = node.integers("kernel_shape")
    return height, width


def ties_of(graph: Graph, nodes: Sequence[Node]) -> Ties:
    """What the operators demand of the scales of their tensors."""
    equal: list[tuple[str, str]] = []
    ratios: list[Ratio] = []
    ceilings: dict[str, float] = {}
    powers: list[str] = []
    for node in nodes:
        x, y = node.inputs[0], node.output
        if node.op in (*MOVEMENT, *SELECTION, "Neg") or is_relu(node):
            equal += [(x, other) for other in (*node.inputs[1:], *node.outputs)]
        elif selects(graph, node):
            equal.append((x, y))
        elif node.op in ("AveragePool", "GlobalAveragePool"):
            exponent = average_taps(average_kernel(graph, node))[1]
            ratios.append(Ratio(y, x, -exponent, MOST_SHIFT - exponent))
        elif node.op == "Add":
            equal.append((x, node.inputs[1]))
            ratios.append(Ratio(y, x, 0, MOST_SHIFT))
        elif node.op == "Mul":
            powers.append(node.inputs[factor_of(graph, node)])
            ratios.append(Ratio(y, node.inputs[1 - factor_of(graph, node)], -MOST_GAIN, MOST_SHIFT))
        if (node.op == "Clip" and is_relu(node)) or node.text("activation") == "Clip":
            ceilings[y] = min(ceilings.get(y, np.inf), node.number("max", np.inf) / 127)
    finite = {k: v for k, v in ceilings.items() if np.isfinite(v)}
    return Ties(tuple(equal), tuple(ratios), finite, tuple(powers), unsaturated=visible(graph))


def visible(graph: Graph) -> frozenset[str]:
    """The graph's outputs, and what is only moved or averaged on its way to one: a user sees each of their values.

    The values that saturate are the largest of all, which then cannot be told apart.
    """
    found = set(graph.outputs)
    for node in reversed(graph.nodes):
        moves = node.op in (*MOVEMENT, *SELECTION, "AveragePool") or selects(graph, node)
        if moves and found.intersection(node.outputs):
            found.update(data_inputs(node))
    return frozenset(found)


def selects(graph: Graph, node: Node) -> bool:
    """Whether a Conv gives elements of its input as they are: with equal scales it is exact."""
    taps = graph.constant(node.inputs[1]) if node.op == "Conv" and len(node.inputs) == 2 else None
    if taps is None or not np.isin(taps, (0, 1)).all():
        return False
    return bool((np.count_nonzero(taps.reshape(len(taps), -1), axis=1) == 1).all())


MOST_GAIN = 5
"""A product's scale is at most 2^5 times finer than its larger operand's: a gate needs no more."""


def factor_of(graph: Graph, node: Node) -> int:
    """Which operand of a product gets a scale that is a power of two: the smaller one, else the second."""
    sizes = [graph.tensors[name].size for name in node.inputs]
    return 0 if sizes[0] < sizes[1] else 1


def floors(graph: Graph, nodes: Sequence[Node], spreads: Mapping[str, Spread]) -> dict[str, float]:
    """For the result of each convolution the deviation of the error that quantising its input alone brings.

    Finer steps would be spent on noise; the range that they cost is worth more, above all where few calibration
    samples happen to cancel.
    """
    found: dict[str, float] = {}
    for node in nodes:
        if node.op == "Conv":
            w = graph.constants[node.inputs[1]]
            gain = np.sqrt(np.mean(np.square(w, dtype=np.float64)) * (w.size / len(w)))
            found[node.output] = float(spreads[node.inputs[0]].largest / 127 * gain / np.sqrt(12))
    return {name: floor for name, floor in found.items() if floor > 0}


def quantise(
    graph: Graph,
    nodes: Sequence[Node],
    spreads: Mapping[str, Spread],
    method: str = "mse",
    tabulate: Tabulate | None = None,
) -> Quantised:
    """The integer graph of a float graph, these of whose nodes become integer.

    spreads: of every tensor in tensors_of(nodes). tabulate: makes the target's activation tables. Raises
    UnsupportedOperator (E205) for a node without an integer form.
    """
    ties = replace(ties_of(graph, nodes), floors=floors(graph, nodes, spreads))
    scales = choose_scales(spreads, ties, method)
    return _Builder(graph, nodes, scales, tabulate).built()


class _Builder(Draft):
    """Walks the float graph once and collects the nodes and constants of the integer graph."""

    def __init__(
        self, graph: Graph, nodes: Sequence[Node], scales: Mapping[str, float], tabulate: Tabulate | None
    ) -> None:
        super().__init__(graph, scales)
        self.tabulate = tabulate
        self.integer = {id(node) for node in nodes}

    def built(self) -> Quantised:
        """The integer graph of all nodes."""
        for node in self.float.nodes:
            if id(node) not in self.integer:
                self.keep(node)
                continue
            inputs = tuple(self.as_int8(name) for name in data_inputs(node))
            op, attrs, extra = self._form(node)
            outputs = tuple(int8_name(name) for name in node.outputs)
            name = node.name or node.output
            self.add(Node(op, (*inputs, *extra), outputs, attrs, name, node.sources))
        return self.result()

    def _form(self, node: Node) -> tuple[str, dict[str, Attr], tuple[str, ...]]:
        """The integer operator, its attributes and its constant inputs."""
        relu = int(node.text("activation") in ("Relu", "Clip"))
        match node.op:
            case "Conv":
                return "IntConv", {**_window(node), "relu": relu}, self._weights(node)
            case "AveragePool" | "GlobalAveragePool":
                channels = self.float.shape(node.inputs[0])[1]
                window = {} if node.op.startswith("Global") else _window(node)
                return "IntConv", {**window, "group": channels, "average": 1}, self._average(node)
            case "GlobalMaxPool":
                return "MaxPool", {"kernel_shape": average_kernel(self.float, node)}, ()
            case "Add":
                attrs: dict[str, Attr] = {"shift": self._shift(node), "relu": relu}
                if "fused_input" in node.attrs:
                    attrs["fused_input"] = node.integer("fused_input")
                return "IntAdd", attrs, ()
            case "Mul":
                return "IntMul", {"shift": self._product_shift(node)}, ()
            case "Relu" | "Clip" if is_relu(node):
                return "IntRelu", {}, ()
            case op if op in MOVEMENT or op == "MaxPool":
                return op, dict(node.attrs), ()
            case _:
                return self._activation(node)

    def _activation(self, node: Node) -> tuple[str, dict[str, Attr], tuple[str, ...]]:
        """A table, or two slopes per channel."""
        x_scale, y_scale = self.scales[node.inputs[0]], self.scales[node.output]
        function = as_unary(self.float, node)
        if function is not None and self.tabulate is not None:
            table = self.tabulate(wanted_values(function, x_scale, y_scale))
            named = {"starts": table.starts, "a": table.a, "b": table.b}
            return "IntTable", {"shift": table.shift, "error_lsb": table.error}, self._named(node, named)
        if node.op == "PRelu":
            return "IntPRelu", {}, self._slopes(node, x_scale, y_scale)
        raise UnsupportedOperator("E205", "no int8 form", node=node.name, op=node.op)

    def _slopes(self, node: Node, x_scale: float, y_scale: float) -> tuple[str, ...]:
        """Factors and shifts of a PRelu, quantised as the weights of one tap."""
        slope = self.float.constants[node.inputs[1]].reshape(-1, 1)
        channels = self.float.shape(node.inputs[0])[1]
        sides = {"positive": np.ones((channels, 1)), "negative": np.broadcast_to(slope, (channels, 1))}
        named: dict[str, Array] = {}
        for side, value in sides.items():
            found = quantise_weights(value, None, x_scale, y_scale)
            named |= {side: found.w.ravel(), f"{side}_shift": found.shift}
        return self._named(node, named)

    def _shift(self, node: Node) -> int:
        return round(np.log2(self.scales[node.output] / self.scales[node.inputs[0]]))

    def _product_shift(self, node: Node) -> int:
        """The right shift of a product. Raises UnsupportedOperator (E205) where it would have to be a left one."""
        first, second = (self.scales[name] for name in node.inputs)
        shift = round(np.log2(self.scales[node.output] / first / second))
        if not 0 <= shift <= MOST_SHIFT:
            raise UnsupportedOperator(
                "E205",
                f"the product needs a right shift by {shift}",
                node=node.name,
                op=node.op,
                limit=f"0..{MOST_SHIFT}",
                remedy="a factor of at most about 1 in magnitude, as a gate is",
            )
        return shift

    def _weights(self, node: Node) -> tuple[str, ...]:
        x, weights, *rest = node.inputs
        bias = self.float.constants[rest[0]] if rest and rest[0] else None
        w = self.float.constants[weights]
        _expect_weights(node, w, self.scales[x] / self.scales[node.output])
        found = quantise_weights(w, bias, self.scales[x], self.scales[node.output])
        _expect_accumulators(node, found.w, found.bias)
        return self._layer(node, found.w, found.bias, found.shift)

    def _average(self, node: Node) -> tuple[str, ...]:
        channels = self.float.shape(node.inputs[0])[1]
        taps, exponent = average_taps(average_kernel(self.float, node))
        shift = np.full(channels, exponent + self._shift(node), np.int8)
        return self._layer(node, np.tile(taps, (channels, 1, 1, 1)), np.zeros(channels, np.int32), shift)

    def _layer(self, node: Node, w: Array, bias: Array, shift: Array) -> tuple[str, ...]:
        return self._named(node, {"w": w, "bias": bias, "shift": shift})

    def _named(self, node: Node, values: Mapping[str, Array]) -> tuple[str, ...]:
        """The names of a node's new constants."""
        stem = int8_name(node.output)
        return tuple(self.constant(f"{stem}/{key}", value) for key, value in values.items())


def _window(node: Node) -> dict[str, Attr]:
    """The attributes of a window that an integer operator shares with its float one."""
    keys = ("strides", "pads", "dilations", "group", "blocks", "selects")
    return {key: node.attrs[key] for key in keys if key in node.attrs}


def _expect_weights(node: Node, w: Array, ratio: float) -> None:
    """The weights fit 8 bits without a left shift. Raises UnsupportedOperator (E205), also for NaN.

    ratio: scale of the input / scale of the result. Finer results than inputs bring are never chosen, but a limit
    of the result (Clip) may demand them.
    """
    largest = float(np.abs(w).max(initial=0)) * ratio
    if not largest < LARGEST_WEIGHT:
        raise UnsupportedOperator(
            "E205",
            f"one step of the input may be {largest:.6g} steps of the result",
            node=node.name,
            op=node.op,
            tensor=node.output,
            limit="127: an 8-bit weight and a right shift",
            remedy="calibrate with data that reach the layer's range, or widen the limits of its activation",
        )


def _expect_accumulators(node: Node, w: Array, bias: Array) -> None:
    """No accumulator can leave 32 bits, whatever the input. Raises DoesNotFit (E304)."""
    bound = int(accumulator_bound(w, bias).max())
    if bound >= ACCUMULATOR_LIMIT:
        raise DoesNotFit(
            "E304",
            f"an accumulator could reach {bound}",
            node=node.name,
            op=node.op,
            limit="below 2^31",
            remedy="split the layer's input channels",
        )
