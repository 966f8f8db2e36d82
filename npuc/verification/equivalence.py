"""Whether the graph after the passes is equivalent to the model: both run under onnxruntime, on samples.

Rewritten float arithmetic rounds differently, and a network may amplify that: through depth, through cancellation,
or by quantising a value near a tie. Outputs that do not agree outright are therefore judged by sensitivity, as in
Monte Carlo arithmetic: in the graph before the passes, the inputs and every result are perturbed by MOVED of their
value, some hundred times the rounding of float32; the graph after the passes may be off by FACTOR times the change
of the outputs. Source: Parker, Monte Carlo Arithmetic, UCLA CSD-970002.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.errors import ModelError
from npuc.frontend import load
from npuc.frontend.reading import read_model
from npuc.frontend.widening import is_half
from npuc.ir import Array, Graph, Node
from npuc.onnx_files.wire import may_contain
from npuc.ops.quantisation import CONVERSIONS
from npuc.reference import graph_session, present, values_of, with_outputs
from npuc.regions.witnesses import file_session, foreign_session
from npuc.verification.padding import has_automatic_padding, model_of

if TYPE_CHECKING:
    import onnx

RELATIVE, OF_LARGEST = 1e-4, 1e-5
"""Tolerances for agreement outright: relative to each element, and to the largest of its tensor."""
MOVED = 2.0**-15
WHOLE = 1 << 25
"""Bytes up to which onnxruntime reads the file itself: it makes two copies of it."""
DRAWS = 3
"""The number of random perturbations."""
FACTOR = 2.0
"""Permitted error of the graph, as a multiple of its sensitivity."""
QUANTISED = {*CONVERSIONS, "QuantizeLinear", "DequantizeLinear"}
Values = dict[str, Array]


class Equivalence:
    """A model and the graph that the passes made of it, ready to be run on samples.

    Raises ModelError (E105) if onnxruntime refuses the model.
    """

    def __init__(self, model: Path, graph: Graph) -> None:
        self.path, self.graph, self.outputs = model, graph, list(graph.outputs)
        self.large = model.stat().st_size > WHOLE
        """Whether to avoid two copies of the weights in memory: each session is then closed after its run."""
        self.model: Any = self._open_model()
        self.rewritten: Any = None if self.large else self._open_rewritten()

    def _open_model(self) -> Any:
        floats = not any(node.op in QUANTISED for node in self.graph.nodes)
        rewritten = (
            has_automatic_padding(self.path)
            or may_contain(self.path, b"DynamicQuantizeLinear")
            or is_half(read_model(self.path, whole=False))
        )
        if not self.large and not rewritten:
            return file_session(self.path, few_runs=floats)
        model = self._prepared(whole=not self.large)
        return foreign_session(model, self.path.parent, few_runs=floats)

    def _prepared(self, *, whole: bool = True) -> onnx.ModelProto:
        return model_of(self.path, _shapes(self.graph), whole=whole)

    def _open_rewritten(self) -> Any:
        return graph_session(self.graph, self.outputs, few_runs=True)

    def release(self) -> None:
        """Closes the sessions of the model and the graph, which hold copies of the weights."""
        self.model = self.rewritten = None

    def expected(self, feed: Mapping[str, Array]) -> Values:
        """The model's outputs on a sample. Raises ModelError (E105) if onnxruntime cannot run it."""
        model = self.model or self._open_model()
        self.model = None if self.large else model
        return _run(model, feed)

    def differing(self, feed: Mapping[str, Array], wanted: Mapping[str, Array]) -> str | None:
        """The first tensor of model and graph whose values differ on a sample; None if the outputs agree.

        wanted: the model's outputs.
        """
        rewritten = self.rewritten or self._open_rewritten()
        self.rewritten = None if self.large else rewritten
        found = values_of(rewritten, self.outputs, feed)
        del rewritten
        if all(_agree(wanted[name], found[name]) for name in self.outputs):
            return None
        apart = self._beyond(feed, wanted, self.outputs)
        return None if apart is None else self._first(feed) or apart

    @cached_property
    def _read(self) -> Graph:
        """The graph before any pass."""
        return load(self.path, _shapes(self.graph))

    def _beyond(self, feed: Mapping[str, Array], wanted: Mapping[str, Array], names: Sequence[str]) -> str | None:
        """The first of these tensors whose error its sensitivity does not explain."""
        found = _values(self.graph, names, feed)
        room = _moves(self._read, names, feed)
        return next((each for each in names if not _within(wanted[each], found[each], room[each])), None)

    def _first(self, feed: Mapping[str, Array]) -> str | None:
        """The first tensor, in the graph's order, that the model also has but with other values."""
        model = self._prepared()
        written = [name for node in self.graph.nodes for name in node.outputs if name in self._read.producers]
        names = list(dict.fromkeys([*present(model, written), *self.outputs]))
        try:
            wanted = _run(foreign_session(with_outputs(model, names)), feed)
        except ModelError:  # an inner tensor has a type that onnxruntime cannot output
            return None
        alike = [name for name in names if wanted[name].shape == self.graph.shape(name) == self._read.shape(name)]
        return self._beyond(feed, wanted, alike) if alike else None


def _shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {name: graph.shape(name) for name in graph.inputs}


def _run(model: Any, feed: Mapping[str, Array]) -> Values:
    names = [each.name for each in model.get_outputs()]
    try:
        found = model.run(names, {each.name: feed[each.name] for each in model.get_inputs()})
    except Exception as error:  # onnxruntime raises many unrelated types
        raise ModelError("E105", f"onnxruntime cannot run the model: {error}") from None
    return dict(zip(names, found, strict=True))


def _values(graph: Graph, names: Sequence[str], feed: Mapping[str, Array]) -> Values:
    run = graph_session(graph, names)
    taken = {each.name for each in run.get_inputs()}
    return values_of(run, names, {name: feed[name] for name in taken})


def _moves(graph: Graph, names: Sequence[str], feed: Mapping[str, Array]) -> dict[str, tuple[float, float]]:
    """The largest change of tensors under perturbation: root of the sum of squares, and largest element."""
    still = _values(graph, names, feed)
    moves = dict.fromkeys(names, (0.0, 0.0))
    for seed in range(DRAWS):
        random = np.random.default_rng(seed)
        moved = _values(
            _moved(graph, random), names, {name: _shifted(each, random) for name, each in feed.items()}
        )
        for name in names:
            distance = _distance(still[name], moved[name])
            moves[name] = max(moves[name][0], distance[0]), max(moves[name][1], distance[1])
    return moves


def _moved(graph: Graph, random: np.random.Generator) -> Graph:
    """The graph with a multiplication after every float result that perturbs its elements."""
    nodes: list[Node] = []
    constants, tensors = dict(graph.constants), dict(graph.tensors)
    for node in graph.nodes:
        floats = [name for name in node.outputs if name and graph.tensors[name].dtype == "float32"]
        nodes.append(
            replace(node, outputs=tuple(f"{name}{STILL}" if name in floats else name for name in node.outputs))
        )
        for name in floats:
            constants[f"{name}{MOVES}"] = _shifted(np.ones(graph.shape(name), np.float32), random)
            tensors[f"{name}{STILL}"] = tensors[f"{name}{MOVES}"] = graph.tensors[name]
            nodes.append(Node("Mul", (f"{name}{STILL}", f"{name}{MOVES}"), (name,), name=f"{name}{MOVES}"))
    return replace(graph, nodes=tuple(nodes), constants=constants, tensors=tensors)


STILL, MOVES = "/still", "/moves"


def _shifted(values: Array, random: np.random.Generator) -> Array:
    """Each element changed by MOVED of its value, up or down; arrays other than float32 stay."""
    if values.dtype != np.float32:
        return values
    return np.asarray(values * (1 + MOVED * random.choice((-1, 1), values.shape))).astype(np.float32)


def _agree(wanted: Array, found: Array) -> bool:
    """Whether two tensors are equal up to rounding."""
    if wanted.shape != found.shape:
        return False
    if wanted.dtype.kind not in "fc":
        return bool(np.array_equal(wanted, found))
    room = OF_LARGEST * float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
    return bool(np.isclose(found, wanted, rtol=RELATIVE, atol=room, equal_nan=True).all())


def _within(wanted: Array, found: Array, room: Sequence[float]) -> bool:
    """Whether two tensors agree, or differ by no more than FACTOR times their sensitivity (`room`)."""
    if _agree(wanted, found):
        return True
    if wanted.shape != found.shape:
        return False
    return all(apart <= FACTOR * move for apart, move in zip(_distance(wanted, found), room, strict=True))


def _distance(one: Array, other: Array) -> tuple[float, float]:
    """The root of the sum of squares of a difference, and its largest element.

    Infinite or undefined values in both count as equal.
    """
    a, b = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    apart = np.nan_to_num(apart, nan=np.inf)
    return float(np.sqrt(np.square(apart).sum())), float(apart.max(initial=0))
