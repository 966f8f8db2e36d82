"""A network under construction: every value is computed at once, so that only steps with tame values are kept.

Every tensor so far may be read again or be an output; feeds have means other than zero, and extremes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np

from npuc.errors import NpucError
from npuc.ir import Array, Attr, Graph, Node, TensorType, type_of
from npuc.ops import build, infer
from npuc.ops.interpreter import evaluate

T = TypeVar("T")
Shape = tuple[int, ...]

MOST_ELEMENTS = 1500
"""Of a tensor, unless told otherwise: graphs are small, that many are tried."""
MOST_WORK = 200_000
"""Products of a convolution or matrix product, for so many elements of a tensor."""
LARGEST = 1e4
"""Magnitude of a value: float32 sums of larger ones lose what is compared."""
SAMPLES = 2
"""How many samples every value is computed for."""

STEPS = {"Floor": 0.0, "Ceil": 0.0, "Round": 0.5}
"""Functions with jumps, and where between two integers they lie."""
NEAR_JUMP = 2e-3
"""Of a step: values this near are not drawn, as the last bits, in which rewritten graphs differ, would decide."""


class Drawing:
    """The nodes, types and values of a network; `random` decides everything."""

    def __init__(self, seed: int, most_elements: int = MOST_ELEMENTS) -> None:
        self.seed, self.most_elements = seed, most_elements
        self.random = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, TensorType] = {}
        self.types: dict[str, TensorType] = {}
        self.values: list[dict[str, Array]] = [{} for _ in range(SAMPLES)]
        self.computed: list[str] = []
        """Float tensors that depend on an input, inputs included, in order."""

    # chances

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.random.random() < probability)

    def number(self, low: int, high: int) -> int:
        """An integer in low..high."""
        return int(self.random.integers(low, high + 1))

    def pick(self, values: Sequence[T]) -> T:
        """One of the values."""
        return values[int(self.random.integers(len(values)))]

    # tensors

    def shape(self, name: str) -> Shape:
        """The tensor's shape."""
        return self.types[name].shape

    def input(self, shape: Shape) -> str:
        """A new graph input with feeds of one of several characters."""
        name = f"x{len(self.inputs)}"
        kind = TensorType(shape)
        self.inputs[name] = self.types[name] = kind
        character = self.number(0, 5)
        for values in self.values:
            values[name] = self._feed(shape, character)
        self.computed.append(name)
        return name

    def _feed(self, shape: Shape, character: int) -> Array:
        noise = self.random.standard_normal(shape)
        if character == 0:
            noise = np.abs(noise)  # of one sign, as behind Relu
        elif character == 1:
            noise = noise * 0.2 - 1.5
        elif character == 2:
            noise = noise + 2 * self.random.standard_normal((*shape[:2], *(1,) * len(shape[2:]))[: len(shape)])
        elif character == 3 and noise.size:
            noise.flat[self.number(0, noise.size - 1)] = self.pick((-8.0, 8.0))  # an outlier
        elif character == 4:
            noise = np.clip(noise + 0.7, -1, 1)  # many values at the limits
        return np.asarray(noise, np.float32)

    def constant(self, value: Array) -> str:
        """A constant; now and then one that is there already with the same value."""
        for name, known in self.constants.items():
            if known.shape == value.shape and known.dtype == value.dtype and np.array_equal(known, value):
                return name
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        self.types[name] = type_of(value)
        return name

    def floats(self, shape: Shape, low: float = -1.5, high: float = 1.5) -> str:
        """A float constant; now and then one of this shape that others read too."""
        if self.chance(0.15):
            known = [
                name
                for name, value in self.constants.items()
                if value.shape == shape
                and value.dtype == np.float32
                and value.min(initial=high) >= low
                and value.max(initial=low) <= high
            ]
            if known:
                return self.pick(known)
        return self.constant(self.random.uniform(low, high, shape).astype(np.float32))

    def weights(self, shape: Shape) -> str:
        """Weights that keep the variance; now and then sparse, uneven between channels, or of one sign."""
        values = self.random.standard_normal(shape) / np.sqrt(max(prod(shape[1:]), 1))
        kind = self.number(0, 9)
        if kind == 0:
            values *= self.random.random(shape) < 0.3
        elif kind == 1:
            values = np.abs(values)
        elif kind == 2:
            values *= 10 ** self.random.uniform(-2, 0.5, (shape[0], *(1,) * (len(shape) - 1)))
        return self.constant(values.astype(np.float32))

    def any(self, ranks: Sequence[int] = (), *, dtype: str = "float32") -> str | None:
        """A tensor that depends on an input, most often one of the latest; of these ranks if any are given."""
        found = [
            name
            for name in self.computed
            if self.types[name].dtype == dtype and (not ranks or len(self.shape(name)) in ranks)
        ]
        if not found:
            return None
        recent = found[-self.pick((1, 1, 2, 3, 8)) :]
        return self.pick(recent)

    def alike(self, shape: Shape, other_than: str = "") -> str | None:
        """A tensor of exactly this shape; the same tensor only by chance."""
        found = [name for name in self.computed if self.types[name] == TensorType(shape)]
        others = [name for name in found if name != other_than]
        if not others or self.chance(0.15):
            return self.pick(found) if found else None
        return self.pick(others)

    # nodes

    def nodes_of(self, node: Node) -> tuple[str, ...]:
        """Adds a node; gives the names of its results, none where it is not legal or its values are not tame."""
        absent = TensorType(())
        try:
            kinds = infer(node, [self.types[name] if name else absent for name in node.inputs])
        except (NpucError, KeyError, TypeError, ValueError, IndexError):
            return ()
        if any(kind.size > self.most_elements or len(kind.shape) > 6 for kind in kinds):
            return ()
        if self._work(node) > MOST_WORK * self.most_elements // MOST_ELEMENTS:
            return ()
        found = [self._evaluated(node, values) for values in self.values]
        if any(results is None for results in found):
            return ()
        for values, results in zip(self.values, found, strict=True):
            values.update(zip(node.outputs, results or (), strict=True))
        self.nodes.append(node)
        self.types.update(zip(node.outputs, kinds, strict=True))
        if any(name in self.values[0] and name not in self.constants for name in node.inputs):
            self.computed.extend(node.outputs)
        return node.outputs

    def node(self, op: str, *inputs: str, outputs: int = 1, **attrs: Attr) -> str | None:
        """The first result of a new node, or None."""
        number = len(self.nodes)
        names = tuple(f"t{number}" + (f"_{count}" if count else "") for count in range(outputs))
        made = Node(op, inputs, names, attrs, f"n{number}", (f"n{number}",))
        found = self.nodes_of(made)
        return found[0] if found else None

    def _work(self, node: Node) -> int:
        if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            return 0
        return self.types[node.inputs[0]].size * self.types[node.inputs[1]].size

    def _evaluated(self, node: Node, values: Mapping[str, Array]) -> tuple[Array, ...] | None:
        """The node's results, or None where they are infinite, huge, or hang on the last bits of the operands."""
        given = [
            np.empty(0, np.float32) if not name else self.constants.get(name, values.get(name, np.empty(0)))
            for name in node.inputs
        ]
        if not _steady(node, given):
            return None
        try:
            results = evaluate(node, given)
        except (NpucError, ValueError, TypeError):
            return None
        for each in results:
            if each.dtype.kind == "f" and not (np.isfinite(each).all() and np.abs(each).max(initial=0) < LARGEST):
                return None
        return results

    # the graph

    def graph(self, outputs: Sequence[str]) -> Graph:
        """The network with these outputs; inputs that nothing reads stay."""
        return build(f"drawn{self.seed}", self.nodes, self.inputs, outputs, self.constants)

    def feeds(self) -> list[dict[str, Array]]:
        """The samples."""
        return [{name: values[name] for name in self.inputs} for values in self.values]


def _steady(node: Node, inputs: Sequence[Array]) -> bool:
    """Whether no result jumps for a change of the last bits of the operands."""
    x = inputs[0] if inputs else np.empty(0)
    if node.op in STEPS:
        return _away(x, STEPS[node.op])
    if node.op == "FakeQuantize":
        return _away(x / node.number("scale"), 0.5)
    if node.op == "Resize":
        pairs = zip(x.shape, node.numbers("scales"), node.integers("sizes"), strict=True)
        return all(int(np.floor(np.float32(n) * np.float32(s))) == m for n, s, m in pairs)
    if node.op == "DequantizeLinear":
        return bool((inputs[1] > 0).all())
    if node.op == "QuantizeLinear":
        scale = inputs[1]
        if not (scale > 0).all():
            return False
        axis = node.integer("axis", 1)
        column = (
            scale.reshape(())
            if scale.size == 1
            else scale.reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        )
        return _away(x / column, 0.5)
    if node.op == "ArgMax":
        ordered = np.sort(x, axis=node.integer("axis"))
        gaps = np.diff(ordered, axis=node.integer("axis"))
        return bool((np.abs(gaps) > 1e-3).all())
    if node.op in ("Div", "Reciprocal", "Log", "Sqrt", "Pow"):
        divisor = inputs[1] if node.op == "Div" else x
        sound = divisor > 0.05 if node.op in ("Log", "Sqrt", "Pow") else np.abs(divisor) > 0.05
        return bool(sound.all())
    return True


def _away(steps: Array, jump: float) -> bool:
    """Whether no value lies near a jump."""
    distance = np.abs((steps - jump) - np.rint(steps - jump))
    return bool((distance > NEAR_JUMP).all())


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node over other tensors."""
    inputs, outputs = (tuple(names.get(each, each) for each in side) for side in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)
