"""The integer graph: which tensors become int8, with which scales, and the integer operators between them.

A node becomes integer if the target runs it so; data movement is integer between integer nodes. QuantizeLinear and
DequantizeLinear separate the float and integer parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from npuc.errors import DoesNotFit, UnsupportedOperator
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import OPS, Operators
from npuc.ops.accumulators import accumulator_bound
from npuc.ops.attributes import ACTIVATION, FUSED_INPUT, MAX, PADS, VALUE
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.ops.windows import AVERAGES
from npuc.quantize.arithmetic.tables import INPUTS, SegmentTable, Tabulate, as_unary, is_relu, wanted_values
from npuc.quantize.arithmetic.weights import (
    ACCUMULATOR_LIMIT,
    LARGEST_WEIGHT,
    MOST_EXPONENT,
    MOST_SHIFT,
    average_taps,
    quantise_weights,
    sum_factors,
)
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.network.construction import GraphBuilder, Quantise, Quantised
from npuc.quantize.scales.assignment import ScaleConstraints, choose_scales, in_powers_of_two
from npuc.quantize.scales.constraints import (
    WEIGHTED,
    average_kernel,
    constraints_of,
    data_inputs,
    floors,
    largest_weight,
    tensors_of,
)
from npuc.quantize.scales.exact_factors import with_exact_factors
from npuc.quantize.scales.model_scales import NOTHING_GIVEN, Steps, steps_of
from npuc.quantize.scales.spans import ANYTHING, Span, expect_within_reach, limits_of, spans


def quantise(
    graph: Graph,
    nodes: Sequence[Node],
    histograms: Mapping[str, Histogram],
    method: str = "mse",
    given: Mapping[str, Steps] = NOTHING_GIVEN,
    *,
    tabulate: Tabulate | None = None,
    power_of_two: bool = False,
    factors: bool = False,
) -> Quantised:
    """The integer graph of a float graph; these of its nodes become integer.

    histograms: of every tensor in tensors_of(nodes) without given scale and zero point. tabulate: makes the
    target's activation tables. power_of_two: whether every chosen scale must be a power of two. factors: as in
    `constraints_of`. Raises UnsupportedOperator (E205) for a node without an integer form.
    """
    free = {name: histograms[name] for name in tensors_of(nodes) if name not in given}
    expect_within_reach(nodes, free)
    demands = constraints_of(graph, nodes, given, free, factors=factors)
    constraints = replace(demands, floors=floors(graph, nodes, free))
    constraints = in_powers_of_two(constraints, free) if power_of_two else constraints
    chosen = free_steps(graph, nodes, free, constraints, method, given)
    return IntegerBuilder(graph, nodes, {**chosen, **given}, tabulate).build()


def quantiser(tabulate: Tabulate, *, power_of_two: bool = False, factors: bool = False) -> Quantise:
    """`quantise` with a cached search for tables."""
    tables: dict[bytes, SegmentTable] = {}

    def recall(values: Array) -> SegmentTable:
        key = values.tobytes()
        if key not in tables:
            tables[key] = tabulate(values)
        return tables[key]

    return partial(quantise, tabulate=recall, power_of_two=power_of_two, factors=factors)


MOST_ROUNDS = 4
"""The most times that scales are chosen while weights do not fit: coarsening a result may affect another layer."""


def free_steps(
    graph: Graph,
    nodes: Sequence[Node],
    free: Mapping[str, Histogram],
    constraints: ScaleConstraints,
    method: str,
    given: Mapping[str, Steps],
    rounds: int = MOST_ROUNDS,
) -> dict[str, Steps]:
    """The chosen scales; chosen again with coarser results if weights do not fit."""
    fixed = {name: each.scale for name, each in given.items()}
    scales = with_exact_factors(graph, choose_scales(free, constraints, method), constraints, fixed)
    steps = {name: Steps(scale) for name, scale in scales.items()}
    finest = _weight_floors(graph, nodes, {**steps, **given})
    too_fine = {name: floor for name, floor in finest.items() if name in free}
    if not too_fine or rounds == 1:
        return steps
    coarser = replace(constraints, floors={**constraints.floors, **too_fine})
    return free_steps(graph, nodes, free, coarser, method, given, rounds - 1)


def _weight_floors(graph: Graph, nodes: Sequence[Node], steps: Mapping[str, Steps]) -> dict[str, float]:
    """The smallest scales at which weights fit, of results so fine that weights would exceed 8 bits at shift 0."""
    found: dict[str, float] = {}
    for node in nodes:
        if node.op in WEIGHTED:
            coarsest = max(steps[name].scale for name in data_inputs(node))
            finest = coarsest * largest_weight(graph, node) / LARGEST_WEIGHT
            if not finest < steps[node.output].scale:
                found[node.output] = finest * (1 + 1e-3)
    return found


IntegerForm = tuple[str, dict[str, Attr], tuple[str, ...]]
"""An integer operator, its attributes and its constant inputs."""


class IntegerBuilder(GraphBuilder):
    """Walks the float graph once and collects the nodes and constants of the integer graph."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        steps: Mapping[str, Steps],
        tabulate: Tabulate | None,
        operators: Operators = OPS,
    ) -> None:
        super().__init__(
            graph,
            {name: each.scale for name, each in steps.items()},
            {name: each.zero for name, each in steps.items()},
            operators=operators,
        )
        self.tabulate = tabulate
        self.integer = set(nodes)

    def build(self) -> Quantised:
        """The integer graph of all nodes."""
        for node in self.float.nodes:
            if node not in self.integer:
                self.keep(node)
            elif node.op in CONVERSIONS and self.same_steps(node) and not self.clips(node):
                self.share(node.output, self.as_int8(node.inputs[0]))
            else:
                self.convert(node)
        return self.result()

    def convert(self, node: Node) -> None:
        """Appends the integer form of a node."""
        inputs = tuple(self.as_int8(name) for name in data_inputs(node))
        op, attrs, extra = self.form(node)
        outputs = tuple(self.own(name) for name in node.outputs)
        behind, name = self.behind(node), node.name or node.output
        if behind is None:
            self.add(Node(op, (*inputs, *extra), outputs, attrs, name, node.sources))
            return
        free = self.fresh(f"{outputs[0]}/unlimited")
        self.before_limits(free, node.output)
        self.add(Node(op, (*inputs, *extra), (free,), attrs, name, node.sources))
        op, attrs, extra = behind
        self.add(Node(op, (free, *extra), outputs, attrs, f"{name}/limits", node.sources))

    def behind(self, node: Node) -> IntegerForm | None:
        """The operator that limits the result of a node, if its own cannot."""
        limits = self.limits(node)
        if limits is None:
            return None
        stem = f"{self.own(node.output)}/limits"
        return "IntTable", *self._table(stem, np.clip(INPUTS, *limits).astype(np.float64))

    def same_steps(self, node: Node) -> bool:
        """Whether a node's input and result have the same scale and zero point."""
        return self.steps(node.inputs[0]) == self.steps(node.output)

    def clips(self, node: Node) -> bool:
        """Whether a FakeQuantize clips values that occur in its input and that its result's scale could represent.

        That happens if a machine gives the result another scale than the node demands. One step of difference is
        tolerated.
        """
        if steps_of(self.float, node) is None:
            return False
        (low, high), (least, most) = limits_of(self.float, node), self.spans.get(node.inputs[0], ANYTHING)
        scale, zero = self.scales[node.output], self.zeros[node.output]
        below = max(least, (-128 - zero) * scale) < low - 1.5 * scale
        return below or min(most, (127 - zero) * scale) > high + 1.5 * scale

    @cached_property
    def spans(self) -> Mapping[str, Span]:
        """The known value ranges of the float graph's tensors."""
        return spans(self.float)

    def limits(self, node: Node) -> tuple[int, int] | None:
        """The limits of a fused activation, unless saturation or a ReLU at 0 already imposes them."""
        if ACTIVATION(node) not in ("Relu", "Clip"):
            return None
        zero, high = self.zeros[node.output], self.highest(node)
        return None if zero in (0, -128) and high == 127 else (zero, high)

    def highest(self, node: Node) -> int:
        """The integer for the upper limit of a node's result."""
        top = MAX(node) / self.scales[node.output] + self.zeros[node.output]
        return 127 if top >= 126.5 else round(top)

    def _saturates(self, node: Node) -> bool:
        """Whether the limits of a node's result are 0 and saturation."""
        return not self.zeros[node.output] and self.highest(node) == 127

    def form(self, node: Node) -> IntegerForm:
        """The integer operator, its attributes and its constant inputs."""
        relu = int(ACTIVATION(node) in ("Relu", "Clip") and not self.zeros[node.output])
        match node.op:
            case "Conv":
                return "IntConv", {**self.window(node), "relu": relu}, self.weights(node)
            case op if op in AVERAGES:
                channels = self.float.shape(node.inputs[0])[1]
                window = {} if node.op.startswith("Global") else self.window(node)
                return "IntConv", {**window, "group": channels, "average": 1}, self.average(node)
            case "GlobalMaxPool":
                return "MaxPool", {"kernel_shape": average_kernel(self.float, node)}, ()
            case "Add":
                return self.sum(node, relu)
            case "Mul":
                self._expect_no_zeros(node)
                return "IntMul", {"shift": self._product_shift(node)}, ()
            case "Relu" | "Clip" if is_relu(node) and self.same_steps(node) and self._saturates(node):
                return "IntRelu", {}, ()
            case op if op in MOVEMENT or op == "MaxPool":
                return op, dict(node.attrs), ()
            case "Pad":
                return "Pad", {**node.attrs, VALUE.name: float(self.zeros[node.output])}, ()
            case _:
                return self._activation(node)

    def window(self, node: Node) -> dict[str, Attr]:
        """The window attributes that an integer operator shares with its float one, and the padding value of x."""
        keys = ("strides", "pads", "dilations", "group", "blocks", "selects")
        found = {key: node.attrs[key] for key in keys if key in node.attrs}
        zero = self.zeros[node.inputs[0]]
        return {**found, "padding": zero} if zero and any(PADS(node)) else found

    def sum(self, node: Node, relu: int) -> IntegerForm:
        """A plain addition if the scales allow it, otherwise one that multiplies its operands."""
        ratios = [self.scales[name] / self.scales[node.output] for name in node.inputs]
        zeros = [self.zeros[name] for name in (*node.inputs, node.output)]
        shift = -np.log2(ratios[0])
        if ratios[0] == ratios[1] and not any(zeros) and shift in range(MOST_SHIFT + 1):
            attrs: dict[str, Attr] = {"shift": int(shift), "relu": relu}
            fused = FUSED_INPUT(node)
            return "IntAdd", attrs if fused is None else {**attrs, FUSED_INPUT.name: fused}, ()
        expect_weights(node, np.ones(1), max(ratios))
        first, second, exponent = sum_factors(*ratios)
        bias = np.array((zeros[2] << exponent) - first * zeros[0] - second * zeros[1], np.int32)
        named = {"w": np.array([first, second], np.int8), "bias": bias}
        return "IntSum", {"shift": exponent, "relu": relu}, self.add_constants(node, named)

    def _activation(self, node: Node) -> IntegerForm:
        """A table, or two slopes per channel."""
        x, y = self.steps(node.inputs[0]), self.steps(node.output)
        function = node if is_relu(node) else as_unary(self.float, node)
        if node.op == "FakeQuantize":
            low, high = limits_of(self.float, node)
            function = Node("Clip", node.inputs, node.outputs, {"min": low, "max": high})
        if function is not None and self.tabulate is not None:
            values = wanted_values(function, x.scale, y.scale, x.zero, y.zero)
            return "IntTable", *self._table(self.own(node.output), values)
        if node.op == "PRelu":
            self._expect_no_zeros(node)
            return "IntPRelu", {}, self._slopes(node, x.scale, y.scale)
        raise UnsupportedOperator("E205", "no int8 form", node=node.name, op=node.op)

    def _expect_no_zeros(self, node: Node) -> None:
        """Checks that no operand or result has a zero point. Raises UnsupportedOperator (E205)."""
        zeros = {name: self.zeros[name] for name in (*data_inputs(node), node.output) if self.zeros[name]}
        for name, zero in zeros.items():
            raise UnsupportedOperator(
                "E205", f"its zero point is {zero}", node=node.name, op=node.op, tensor=name, limit="0"
            )

    def _table(self, stem: str, values: Array) -> tuple[dict[str, Attr], tuple[str, ...]]:
        """Attributes and constants of the table for these values."""
        if self.tabulate is None:
            raise UnsupportedOperator("E205", "the target has no activation tables", tensor=stem)
        table = self.tabulate(values)
        named = {"starts": table.starts, "a": table.a, "b": table.b}
        constants = tuple(self.constant(f"{stem}/{key}", value) for key, value in named.items())
        return {"shift": table.shift, "error_lsb": table.error}, constants

    def _slopes(self, node: Node, x_scale: float, y_scale: float) -> tuple[str, ...]:
        """Factors and shifts of a PRelu, quantised as single-tap weights."""
        slope = self.float.constants[node.inputs[1]].reshape(-1, 1)
        channels = self.float.shape(node.inputs[0])[1]
        sides = {"positive": np.ones((channels, 1)), "negative": np.broadcast_to(slope, (channels, 1))}
        named: dict[str, Array] = {}
        for side, value in sides.items():
            found = quantise_weights(value, None, x_scale, y_scale)
            named |= {side: found.w.ravel(), f"{side}_shift": found.shift}
        return self.add_constants(node, named)

    def _product_shift(self, node: Node) -> int:
        """The right shift of a product. Raises UnsupportedOperator (E205) if a left shift would be needed."""
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

    def weights(self, node: Node) -> tuple[str, ...]:
        """The names of a convolution's integer weights, bias and shift."""
        _, weights, *rest = node.inputs
        bias = self.float.constants[rest[0]] if rest and rest[0] else None
        w = self.float.constants[weights]
        x, y = self.steps(node.inputs[0]), self.steps(node.output)
        expect_weights(node, w, x.scale / y.scale)
        found = quantise_weights(w, bias, x.scale, y.scale, x.zero, y.zero)
        expect_accumulators(node, found.w, found.bias)
        return self.layer(node, found.w, found.bias, found.shift)

    def average(self, node: Node) -> tuple[str, ...]:
        """Constants of an average. The taps absorb the ratio of the scales; a power of two goes into the shift."""
        channels = self.float.shape(node.inputs[0])[1]
        x, y = self.steps(node.inputs[0]), self.steps(node.output)
        kernel, ratio = average_kernel(self.float, node), x.scale / y.scale
        expect_weights(node, np.ones(1), ratio / np.prod(kernel))
        taps, exponent = average_taps(kernel)
        shift = exponent - np.log2(ratio)
        if shift != round(shift) or not 0 <= shift <= MOST_EXPONENT:
            taps, shift = average_taps(kernel, ratio)
        shift = int(shift)
        bias = (y.zero << shift) - x.zero * int(taps.sum())
        w = np.tile(taps, (channels, 1, 1, 1))
        return self.layer(node, w, np.full(channels, bias, np.int32), np.full(channels, shift, np.int8))

    def layer(self, node: Node, w: Array, bias: Array, shift: Array) -> tuple[str, ...]:
        """The names of new constants of a convolution."""
        names = self.add_constants(node, {"w": w, "bias": bias, "shift": shift})
        self.sources[names[0]] = node.output
        return names

    def add_constants(self, node: Node, values: Mapping[str, Array]) -> tuple[str, ...]:
        """The names of a node's new constants."""
        stem = self.own(node.output)
        return tuple(self.constant(f"{stem}/{key}", value) for key, value in values.items())


def expect_weights(node: Node, w: Array, ratio: float) -> None:
    """Checks that the weights fit 8 bits without a left shift. Raises UnsupportedOperator (E205), also for NaN.

    ratio: scale of the input / scale of the result. Results finer than the inputs justify are never chosen, but a
    limit of the result (Clip) may require them.
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


def expect_accumulators(node: Node, w: Array, bias: Array) -> None:
    """Checks that no accumulator can exceed 32 bits, whatever the input. Raises DoesNotFit (E304)."""
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
