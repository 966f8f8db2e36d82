"""Builder of an integer graph, for what all targets' integer forms of a network share.

A target adds its integer operators one after the other; the rest of the float graph is kept. QuantizeLinear and
DequantizeLinear are inserted where float and integer parts meet. The int8 form of tensor `t` is named `t/int8`, or
`t/int8_2` if the model has a tensor of that name. A machine may use other number formats: int16, with forms named
`t/int16`, or floating point, where a tensor is its own form and nothing is inserted.

Code that changes weights has a machine-independent view of the convolutions (IntegerLayer). Their sums are
integers; the bias is added in units of the sums; a real factor per channel then converts them to steps of the
result. How a target's node encodes this, and how its weights are replaced, is up to the target (LayerEncoding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops import OPS, Operators, rebuild
from npuc.ops.attributes import RELU
from npuc.quantize.arithmetic.weights import ACCUMULATOR_LIMIT
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.scales.model_scales import Steps, of_model, steps_of


@frozen
class Quantised:
    """The integer graph, the scale of every int8 tensor, and the float tensor that each one represents.

    zeros: the zero points that are not 0. factors: for equalised tensors, what the scale of each channel (axis 1)
    is multiplied by. forms: the integer form of every float tensor with its own. sources: the result of the float
    convolution to which integer weights belong. unlimited: tensors that have the scale of their float tensor, but
    not yet its limits.
    """

    graph: Graph
    scales: Mapping[str, float]
    floats: Mapping[str, str]
    zeros: Mapping[str, int] = field(default_factory=dict[str, int])
    factors: Mapping[str, Array] = field(default_factory=dict[str, Array])
    forms: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    unlimited: frozenset[str] = frozenset()


class Quantise(Protocol):
    """A target's function that makes its integer graph."""

    def __call__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        histograms: Mapping[str, Histogram],
        method: str,
        given: Mapping[str, Steps],
        /,
    ) -> Quantised:
        """The integer graph of a float graph; these of its nodes become integer.

        histograms: of every tensor that becomes int8 and has no given scale and zero point. method: of
        calibration.
        """
        ...


class GraphBuilder:
    """Collects the nodes and constants of the integer graph of a float graph, in its order."""

    def __init__(
        self,
        graph: Graph,
        scales: Mapping[str, float],
        zeros: Mapping[str, int] | None = None,
        dtype: str = "int8",
        operators: Operators = OPS,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self.float = graph
        self.dtype = dtype
        self.dtypes = dict(dtypes or {})
        """The number formats of tensors that have another one."""
        self.operators = operators
        self.scales = {name: float(np.float32(scale)) for name, scale in scales.items()}
        self.zeros = dict.fromkeys(scales, 0) | dict(zeros or {})
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = dict(graph.constants)
        self.have: set[str] = {*graph.inputs, *graph.constants}
        self.sources: dict[str, str] = {}
        self._names = graph.names()
        self._stored: dict[str, tuple[str, str]] = {}
        self._shared: dict[str, str] = {}
        self._stands: dict[str, str] = {}
        self._unlimited: set[str] = set()

    def steps(self, tensor: str) -> Steps:
        """The scale and zero point of a float tensor's int8 form."""
        return Steps(self.scales[tensor], self.zeros[tensor])

    def int8(self, tensor: str) -> str:
        """The name of a float tensor's form in the machine's number format: its own, or one that it shares."""
        return self._shared.get(tensor, self.own(tensor))

    def own(self, tensor: str) -> str:
        """The name of a float tensor's own form in the machine's number format."""
        dtype = self.dtype_of(tensor)
        return tensor if dtype == "float32" else self.fresh(f"{tensor}/{dtype}")

    def dtype_of(self, tensor: str) -> str:
        """The number format of a float tensor's form."""
        return self.dtypes.get(tensor, self.dtype)

    def fresh(self, stem: str) -> str:
        """A name that the model has not, made of a stem: always the same for the same stem."""
        return self._names.of(stem)

    def share(self, tensor: str, integers: str) -> None:
        """Makes these integers the int8 form of a further tensor."""
        self._shared[tensor] = integers
        self._stands.setdefault(integers, tensor)

    def before_limits(self, integers: str, tensor: str) -> None:
        """Gives integers the scale and zero point of a float tensor, whose int8 form a limit makes of them."""
        self._stands[integers] = tensor
        self._unlimited.add(integers)

    def add(self, node: Node) -> None:
        """Appends an integer node, given in terms of the integer graph's tensor names."""
        self.nodes.append(node)
        self.have.update(node.outputs)

    def keep(self, node: Node) -> None:
        """Appends a node of the float graph unchanged; results that already exist as integers are copied."""
        x = node.inputs[0]
        if node.op == "QuantizeLinear" and x in self.scales and self.int8(x) in self.have and self._gives(node, x):
            self.add(replace(node, op="Identity", inputs=(self.int8(x),), attrs={}))
            return
        for tensor in filter(None, node.inputs):
            self._border(self.int8(tensor), tensor, "DequantizeLinear", tensor)
        self.add(node)

    def as_int8(self, tensor: str) -> str:
        """The form in the machine's number format of a float tensor that exists in either form."""
        producer = self.float.producers.get(tensor)
        if producer is not None and producer.op == "DequantizeLinear" and self._gives(producer, tensor):
            self.share(tensor, producer.inputs[0])
        self._border(tensor, self.int8(tensor), "QuantizeLinear", tensor)
        return self.int8(tensor)

    def _gives(self, node: Node, tensor: str) -> bool:
        """Whether the integers that the model itself converts equal a tensor's int8 form."""
        steps = steps_of(self.float, node)
        integers = node.output if node.op == "QuantizeLinear" else node.inputs[0]
        return steps == self.steps(tensor) and self.float.tensors[integers].dtype == self.dtype_of(tensor)

    def constant(self, stem: str, value: Array) -> str:
        """The name of a new constant."""
        name = self.fresh(stem)
        self.constants[name] = value
        return name

    def result(self) -> Quantised:
        """The graph, with the outputs of the float graph."""
        for tensor in self.float.outputs:
            self._border(self.int8(tensor), tensor, "DequantizeLinear", tensor)
        graph = rebuild(replace(self.float, operators=self.operators), self.nodes, self.constants)
        stands = {self.own(name): name for name in self.scales} | self._stands
        present = {name: tensor for name, tensor in stands.items() if name in graph.tensors}
        floats = {name: of_model(self.float, tensor) for name, tensor in present.items()}
        floats |= {name: of_model(self.float, tensor) for tensor, name in self._shared.items() if name in present}
        zeros = {name: self.zeros[tensor] for name, tensor in present.items() if self.zeros[tensor]}
        scales = {name: self.scales[tensor] for name, tensor in present.items()}
        forms = {tensor: self.own(tensor) for tensor in self.scales if self.own(tensor) in graph.tensors}
        unlimited = frozenset(self._unlimited)
        return Quantised(graph, scales, floats, zeros, forms=forms, sources=self.sources, unlimited=unlimited)

    def _border(self, source: str, result: str, op: str, tensor: str) -> None:
        """Quantises or dequantises a tensor, unless its other form already exists."""
        if result in self.have:
            return
        if tensor not in self._stored:
            scale, zero = (
                np.array(self.scales[tensor], np.float32),
                np.array(self.zeros[tensor], self.dtype_of(tensor)),
            )
            names = self.constant(f"{tensor}/scale", scale), self.constant(f"{tensor}/zero", zero)
            self._stored[tensor] = names
        self.add(Node(op, (source, *self._stored[tensor]), (result,), name=f"{result}/{op}"))


@frozen
class LayerWeights:
    """w: (Co, ...) int8; bias: (Co,) int64, multiples of `grain` up to `most`; power: (Co,), sums per step."""

    w: Array
    bias: Array
    power: Array
    grain: int = 1
    most: int = ACCUMULATOR_LIMIT - 1

    @property
    def total(self) -> Array:
        """The sum of each output channel's weights, (Co,) int64."""
        return self.w.reshape(len(self.w), -1).sum(axis=1, dtype=np.int64)

    def round_bias(self, bias: Array) -> Array:
        """The nearest bias that the layer can represent."""
        wanted = np.rint(bias / self.grain).clip(-(self.most // self.grain), self.most // self.grain)
        return wanted.astype(np.int64) * self.grain


@frozen
class IntegerLayer:
    """A float convolution as integers: its result's scale, and the zero point included in the bias.

    source: the result of the float convolution. lowest, largest: the limits of the integer results.
    """

    source: str
    weights: LayerWeights
    scale: float
    zero: int
    lowest: float
    largest: float


class LayerEncoding(Protocol):
    """How a target's nodes encode convolutions."""

    def layer(self, quantised: Quantised, node: Node) -> IntegerLayer | None:
        """The convolution that a node of the integer graph computes; None for other nodes."""
        ...

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """The node's constants with other weights and another bias."""
        ...


class Shifted:
    """IntConv: every channel is requantised by a right shift; the bias includes the zero point of the result."""

    def layer(self, quantised: Quantised, node: Node) -> IntegerLayer | None:
        """The convolution of an IntConv."""
        if node.op != "IntConv":
            return None
        w, bias, shift = (quantised.graph.constants[name] for name in node.inputs[1:4])
        weights = LayerWeights(w, bias.astype(np.int64), np.exp2(shift.astype(np.float64)))
        zero = quantised.zeros.get(node.output, 0)
        lowest, source = 0 if RELU(node) else -128, quantised.sources[node.inputs[1]]
        return IntegerLayer(source, weights, quantised.scales[node.output], zero, lowest, 127)

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """Weights and bias."""
        del quantised
        return {node.inputs[1]: weights.w, node.inputs[2]: weights.bias.astype(np.int32)}


SHIFTED = Shifted()
"""The layers of machines that requantise by shifts only."""
