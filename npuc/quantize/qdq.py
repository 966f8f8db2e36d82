"""The quantised network as QuantizeLinear and DequantizeLinear around float operators, for any runtime.

Every integer tensor is rounded to its steps after the operator that computes it; weights are int8 with a scale per
output channel, biases int32. A runtime computes each operator in float between exact integers, so its results are
those of the integer network except for ties (half to even there, half up here), the integer taps of averages and
the errors of tables: each at most 1 step per layer (or a table's own error if that is larger).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import OPS, rebuild
from npuc.quantize.improvement.search import TrialNetwork


def qdq_graph(network: TrialNetwork) -> Graph:
    """The float graph of a network with its integer tensors rounded and its weights as integers."""
    return _Writer(network).write()


class _Writer:
    """Walks the float graph and rounds the tensors that the integer network rounds."""

    def __init__(self, network: TrialNetwork) -> None:
        self.graph = network.graph
        self.integer = set(network.nodes)
        self.found, self.old = network.quantised, network.names
        read = ((node, network.layers.layer(self.found, node)) for node in self.found.graph.nodes)
        self.layers = {layer.source: (node.inputs[0], layer) for node, layer in read if layer is not None}
        self.constants = dict(network.graph.constants)
        self.names = network.graph.names()
        self.nodes: list[Node] = []

    def write(self) -> Graph:
        """The graph, with the inputs and outputs of the float graph."""
        rounded = [name for name in self.graph.tensors if self.found.forms.get(name) in self.found.scales]
        inner = {name: self.names.new(f"{name}/exact") for name in rounded if name in self.graph.producers}
        read = {name: self.names.new(f"{name}/rounded") for name in rounded if name in self.graph.inputs}
        for name in read:
            self._round(name, name, read[name])
        for node in self.graph.nodes:
            inputs = node.inputs
            if node in self.integer:
                inputs = tuple(read.get(name, name) for name in self._layer_inputs(node))
            outputs = tuple(inner.get(name, name) for name in node.outputs)
            self.nodes.append(replace(node, inputs=inputs, outputs=outputs))
            for name in node.outputs:
                if name in inner:
                    self._round(name, inner[name], name)
        return rebuild(replace(self.graph, operators=OPS), self.nodes, self.constants)

    def _round(self, tensor: str, source: str, result: str) -> None:
        integers = self.found.forms[tensor]
        scale = self._constant(f"{tensor}/scale", np.array(self.found.scales[integers], np.float32))
        dtype = self.found.graph.tensors[integers].dtype
        zero = self._constant(f"{tensor}/zero", np.array(self.found.zeros.get(integers, 0), dtype))
        between = self.names.new(f"{tensor}/steps")
        self.nodes.append(Node("QuantizeLinear", (source, scale, zero), (between,), name=f"{tensor}/quantize"))
        self.nodes.append(Node("DequantizeLinear", (between, scale, zero), (result,), name=f"{tensor}/dequantize"))

    def _layer_inputs(self, node: Node) -> tuple[str, ...]:
        """The inputs of an integer node; a convolution gets the integer network's weights and bias."""
        x, layer = self.layers.get(node.output, ("", None))
        if node.op != "Conv" or layer is None:
            return node.inputs
        weights = layer.weights
        zeros = np.rint(layer.zero * weights.power) - self.found.zeros.get(x, 0) * weights.total
        limits = np.iinfo(np.int32)
        bias = np.clip(weights.bias - zeros, limits.min, limits.max).astype(np.int32)
        step, stem = layer.scale / weights.power, self.old.get(layer.source, layer.source)
        return (
            node.inputs[0],
            self._dequantise(f"{stem}/w", weights.w, step / self.found.scales[x]),
            self._dequantise(f"{stem}/b", bias, step),
        )

    def _dequantise(self, name: str, values: Array, scales: Array) -> str:
        """A constant as integers with a scale per output channel, followed by a DequantizeLinear."""
        name = self.names.new(name)
        integers = self._constant(f"{name}/integers", values)
        scale = self._constant(f"{name}/scale", scales.astype(np.float32))
        zero = self._constant(f"{name}/zero", np.zeros(len(scales), values.dtype))
        self.nodes.append(Node("DequantizeLinear", (integers, scale, zero), (name,), {"axis": 0}, name))
        return name

    def _constant(self, stem: str, value: Array) -> str:
        name = self.names.new(stem)
        self.constants[name] = value
        return name


def qdq_model(network: TrialNetwork) -> bytes:
    """The same as a serialised ONNX model."""
    from npuc.onnx_files.export import to_onnx

    return to_onnx(qdq_graph(network)).SerializeToString(deterministic=True)
