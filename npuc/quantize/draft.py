"""An integer graph under construction: what any target's integer form of a network shares.

A target adds its integer operators one after the other; everything else of the float graph is kept. Where the two
worlds meet, QuantizeLinear and DequantizeLinear arise. The int8 form of tensor `t` is named `t/int8`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import build as build_graph


@dataclass(frozen=True)
class Quantised:
    """The integer graph, the scale of every int8 tensor, and the float tensor each one stands for."""

    graph: Graph
    scales: Mapping[str, float]
    floats: Mapping[str, str]


def int8_name(tensor: str) -> str:
    """The name of the int8 form of a float tensor."""
    return f"{tensor}/int8"


class Draft:
    """Collects the nodes and constants of the integer graph of a float graph, in its order."""

    def __init__(self, graph: Graph, scales: Mapping[str, float]) -> None:
        self.float = graph
        self.scales = {name: float(np.float32(scale)) for name, scale in scales.items()}
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = dict(graph.constants)
        self.have: set[str] = {*graph.inputs, *graph.constants}

    def add(self, node: Node) -> None:
        """Appends an integer node, whose tensors have their names in the integer graph."""
        self.nodes.append(node)
        self.have.update(node.outputs)

    def keep(self, node: Node) -> None:
        """Appends a node of the float graph as it is."""
        for tensor in filter(None, node.inputs):
            self._border(int8_name(tensor), tensor, "DequantizeLinear", tensor)
        self.add(node)

    def as_int8(self, tensor: str) -> str:
        """The int8 form of a float tensor that exists in either form."""
        self._border(tensor, int8_name(tensor), "QuantizeLinear", tensor)
        return int8_name(tensor)

    def constant(self, name: str, value: Array) -> str:
        """The name of a new constant."""
        self.constants[name] = value
        return name

    def result(self) -> Quantised:
        """The graph, with the outputs of the float graph."""
        for tensor in self.float.outputs:
            self._border(int8_name(tensor), tensor, "DequantizeLinear", tensor)
        types = {name: self.float.tensors[name] for name in self.float.inputs}
        graph = build_graph(self.float.name, self.nodes, types, self.float.outputs, self.constants)
        present = {int8_name(name): name for name in self.scales if int8_name(name) in graph.tensors}
        floats = {name: self._onnx_tensor(tensor) for name, tensor in present.items()}
        return Quantised(graph, {name: self.scales[tensor] for name, tensor in present.items()}, floats)

    def _onnx_tensor(self, tensor: str) -> str:
        """The tensor of the ONNX model with the same elements: behind a reshape that a pass put after a node."""
        producer = self.float.producers.get(tensor)
        for reader in self.float.readers[tensor]:
            if producer is not None and reader.op == "Reshape" and reader.sources == producer.sources:
                return reader.output
        return tensor

    def _border(self, source: str, result: str, op: str, tensor: str) -> None:
        """Quantises or dequantises a tensor, unless its other form is there already."""
        if result in self.have:
            return
        scale = self.constant(f"{tensor}/scale", np.array(self.scales[tensor], np.float32))
        zero = self.constant(f"{tensor}/zero", np.zeros((), np.int8))
        self.add(Node(op, (source, scale, zero), (result,), name=f"{result}/{op}"))
