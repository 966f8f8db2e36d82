"""The framework of passes: a graph under change, and rules applied to it until none fires.

A rule looks at one node and its surroundings; it either changes the rewriter and returns True, or returns False.
Rules are anchored at the last node of their pattern, so that one sweep in graph order settles whole chains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from npuc.ir import Array, Attr, Graph, Node, TensorType, type_of
from npuc.ops import infer, rebuild


class Rewriter:
    """The nodes of a graph with producers, readers and types, which are updated with every change.

    A node is identified by its first output. A node that lost its last reader is removed automatically.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants: dict[str, Array] = dict(graph.constants)
        self.types: dict[str, TensorType] = dict(graph.tensors)
        self.outputs = frozenset(graph.outputs)
        self._nodes: dict[str, Node] = {}
        self._places: dict[str, tuple[int, ...]] = {}
        self._producers: dict[str, str] = {}
        self._readers: dict[str, dict[str, None]] = {}
        self._names = graph.names()
        self._invented: set[str] = set()
        self._ranks: dict[str, int] = {}
        for place, node in enumerate(graph.nodes):
            key = _key(node)
            self._nodes[key], self._places[key] = node, (place,)
            for name in node.inputs:
                if name:
                    self._readers.setdefault(name, {})[key] = None
            for name in node.outputs:
                if name:
                    self._producers[name] = key
            for source in node.sources:
                self._ranks.setdefault(source, len(self._ranks))
        self._changed = False

    # the current graph

    def order(self) -> list[str]:
        """The first outputs of all nodes, in graph order."""
        return sorted(self._nodes, key=self._places.__getitem__)

    def node(self, key: str) -> Node | None:
        """The node with this first output, if it still exists."""
        return self._nodes.get(key)

    def place(self, node: Node) -> tuple[int, ...]:
        """The position of the node; positions compare in graph order."""
        return self._places[_key(node)]

    def producer(self, tensor: str) -> Node | None:
        """The node that writes the tensor; None for inputs, constants and the empty name."""
        key = self._producers.get(tensor)
        return None if key is None else self._nodes[key]

    def readers(self, tensor: str) -> list[Node]:
        """The nodes that read the tensor, once per node, in graph order."""
        keys = self._readers.get(tensor, {})
        return [self._nodes[key] for key in sorted(keys, key=self._places.__getitem__)]

    def only_reader(self, tensor: str) -> Node | None:
        """The node that alone reads the tensor; None if there are others or it is a graph output."""
        keys = self._readers.get(tensor, {})
        return self._nodes[next(iter(keys))] if len(keys) == 1 and tensor not in self.outputs else None

    def private(self, tensor: str) -> Node | None:
        """The tensor's producer if a single node reads its result, so that the two may be merged."""
        return self.producer(tensor) if self.only_reader(tensor) else None

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The tensor's shape in elements."""
        return self.types[tensor].shape

    def sources(self, *nodes: Node) -> tuple[str, ...]:
        """The ONNX nodes behind all of these, in graph order."""
        return tuple(sorted({each for node in nodes for each in node.sources}, key=self._ranks.__getitem__))

    # changes

    def fresh(self, stem: str) -> str:
        """A tensor name that is not in use and was not returned before: the stem, or the stem with a number."""
        name = self._names.new(stem)
        self._invented.add(name)
        return name

    def revive(self, name: str) -> bool:
        """Whether a former tensor that has no producer now may be computed again under its name."""
        given = name in self.constants or name in self.graph.inputs or self.producer(name) is not None
        return name in self.types and not given

    def constant(self, value: Array, stem: str) -> str:
        """The name of a new constant."""
        name = self.fresh(stem)
        self.constants[name] = value
        self.types[name] = type_of(value)
        return name

    def part(self, node: Node, op: str, inputs: tuple[str, ...], stem: str, **attrs: Attr) -> Node:
        """A new node that computes a part of what another does; the stem names it and its result."""
        name = self.fresh(stem)
        return Node(op, inputs, (name,), attrs, name, node.sources)

    def back(self, node: Node, tensor: str) -> Node:
        """The Reshape from a tensor to the result of a node."""
        attrs: dict[str, Attr] = {"shape": self.shape(node.output)}
        return Node("Reshape", (tensor,), node.outputs, attrs, node.output, node.sources)

    def replace(self, node: Node, *new: Node) -> None:
        """Replaces one node by others, in order, which must write all its results that are still read."""
        place = self._places[_key(node)]
        self._detach(node)
        for count, each in enumerate(new):
            self._attach(each, (*place, count))
        self._drop_unread(node.inputs)

    def bypass(self, node: Node) -> bool:
        """Removes a node whose first result is its first input, unless both are tensors of the interface.

        Of the two names, the one known to the graph's user survives.
        """
        x, y = node.inputs[0], node.outputs[0]
        producer = self.producer(x)
        renameable = producer is not None and x not in self.outputs
        if y in self.outputs and not renameable:
            return False
        self._detach(node)
        if producer is not None:
            merged = replace(producer, sources=self.sources(producer, node))
            self._swap(producer, merged)
            producer = merged
        if producer is not None and renameable and (y in self.outputs or x in self._invented):
            outputs = tuple(y if name == x else name for name in producer.outputs)
            self._swap(producer, replace(producer, outputs=outputs))
            self.substitute(x, y)
        else:
            self.substitute(y, x)
        self._drop_unread(node.inputs)
        return True

    def substitute(self, old: str, new: str) -> None:
        """Makes every reader of one tensor read another with the same meaning."""
        for node in self.readers(old):
            inputs = tuple(new if name == old else name for name in node.inputs)
            self._swap(node, replace(node, inputs=inputs))

    def drop(self, node: Node, result: str) -> None:
        """Removes a node with one result, not a graph output; its readers read another tensor instead."""
        self._detach(node)
        self.substitute(node.output, result)
        self._drop_unread(node.inputs)

    def merge(self, node: Node, same: Node) -> Node:
        """Removes a node that duplicates another; returns the other in its current form."""
        merged = replace(same, sources=self.sources(same, node))
        self._swap(same, merged)
        self._detach(node)
        for old, new in zip(node.outputs, same.outputs, strict=True):
            if old:
                self.substitute(old, new)
        return merged

    def finish(self) -> Graph:
        """The current graph; the original object if nothing changed."""
        if not self._changed:
            return self.graph
        return rebuild(self.graph, [self._nodes[key] for key in self.order()], self.constants)

    def _swap(self, node: Node, new: Node) -> None:
        place = self._places[_key(node)]
        self._detach(node)
        self._attach(new, place)

    def _attach(self, node: Node, place: tuple[int, ...]) -> None:
        key = _key(node)
        self._nodes[key], self._places[key] = node, place
        for name in filter(None, node.inputs):
            self._readers.setdefault(name, {})[key] = None
        absent = TensorType(())
        if any(name not in self.types for name in node.outputs if name):
            found = infer(node, [self.types[name] if name else absent for name in node.inputs])
            self.types.update((name, each) for name, each in zip(node.outputs, found, strict=True) if name)
            self._names.take(node.outputs)
        self._producers.update((name, key) for name in node.outputs if name)
        self._changed = True

    def _detach(self, node: Node) -> None:
        key = _key(node)
        del self._nodes[key], self._places[key]
        for name in set(filter(None, node.inputs)):
            del self._readers[name][key]
        for name in filter(None, node.outputs):
            del self._producers[name]
        self._changed = True

    def _drop_unread(self, names: tuple[str, ...]) -> None:
        """Removes the producers of these tensors if nothing needs them, and then what only they needed."""
        waiting = list(names)
        while waiting:
            node = self.producer(waiting.pop())
            if node and not any(name in self.outputs or self._readers.get(name) for name in node.outputs):
                self._detach(node)
                waiting.extend(node.inputs)


Rule = Callable[[Rewriter, Node], bool]


def sweep(rewriter: Rewriter, *rules: Rule) -> bool:
    """Visits all nodes once in graph order; returns whether a rule fired."""
    fired = False
    for key in rewriter.order():
        for rule in rules:
            node = rewriter.node(key)
            if node is None:
                break
            fired = rule(rewriter, node) or fired
    return fired


def rewrite(graph: Graph, *rules: Rule) -> Graph:
    """The graph after repeated sweeps over all nodes until no rule fires."""
    rewriter = Rewriter(graph)
    while sweep(rewriter, *rules):
        pass
    return rewriter.finish()


def _key(node: Node) -> str:
    return node.outputs[0] or next(filter(None, node.outputs))
