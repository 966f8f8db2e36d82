"""The judge of every improvement: the noise of quantisation on held-out samples.

It judges the float tensors where the int8 part ends (for example the logits before a softmax on the host) and the
network's outputs after them, by the mean of both noises, in which the worse one dominates. Outputs alone would not
suffice: after a softmax that is confident on most samples they show hardly any noise, or only that of a few
ambiguous samples.

The effect of an error on an output depends on the sample, and an ambiguous sample has only one error of its own.
The errors of the held-out samples are therefore exchanged: every sample is also combined with the errors of its
neighbours, and the outputs' noise is the mean over all pairs. Behind an affine part (factors per channel, data
movement) that mean is the noise of the own errors, which is computed instead.

For a part of a model, the outputs of the whole model count as well: everything else computes them in float.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from npuc.errors import ModelError
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops import build as build_graph
from npuc.ops.movement import ONNX_MOVEMENT
from npuc.quantize.network.construction import Quantised

MOST_PAIRS = 16
"""The most samples whose errors each sample is combined with."""
MOST_ELEMENTS = 1 << 22
"""Bound on the elements of all tensors after int8, over all pairs: larger outputs show many errors per sample."""


@frozen
class Tail:
    """The host's part after int8: outputs computed from the last int8 tensors and the network's inputs."""

    graph: Graph
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, graph: Graph, ends: Collection[str], outputs: Sequence[str]) -> Tail:
        """The part of a float graph from the last int8 tensors to these outputs."""
        wanted, nodes = set(outputs), list[Node]()
        for node in reversed(graph.nodes):
            if wanted.intersection(node.outputs) and not set(node.outputs) <= set(ends):
                nodes.append(node)
                wanted.update(name for name in node.inputs if name and name not in ends)
        read = {name for node in nodes for name in node.inputs if name}
        made = {name for node in nodes for name in node.outputs}
        types = {
            name: graph.tensors[name] for name in graph.tensors if name in read - made - graph.constants.keys()
        }
        held = {name: value for name, value in graph.constants.items() if name in read}
        return cls(build_graph("tail", nodes[::-1], types, outputs, held, graph.operators), tuple(outputs))

    @cached_property
    def session(self) -> Any:
        """An onnxruntime.InferenceSession of this part."""
        from npuc.reference import graph_session

        return graph_session(self.graph, self.outputs)

    def pairs(self, samples: int) -> int:
        """The number of samples whose errors each sample is combined with: at least its own."""
        if all(_is_affine(self.graph, node) for node in self.graph.nodes):
            return 1
        size = sum(self.graph.tensors[name].size for node in self.graph.nodes for name in node.outputs)
        return max(min(samples, MOST_PAIRS, MOST_ELEMENTS // max(size * samples, 1)), 1)


def _is_affine(graph: Graph, node: Node) -> bool:
    """Whether an error has the same effect on the node's results in every sample."""
    scales = node.op == "Mul" and any(name in graph.constants for name in node.inputs)
    return scales or node.op in (*ONNX_MOVEMENT, "Add")


@frozen
class Remainder:
    """All of a model but one part, in float: from its inputs and the part's outputs to its own outputs.

    feeds: held-out samples of the model.
    """

    session: Any
    names: tuple[str, ...]
    feeds: tuple[Mapping[str, Array], ...]

    def outputs(self, given: Sequence[Mapping[str, Array]]) -> dict[str, tuple[Array, ...]]:
        """The model's outputs, by sample. given: those of the part."""
        read = {each.name for each in self.session.get_inputs()}
        feeds = [{**feed, **part} for feed, part in zip(self.feeds, given, strict=True)]
        return _values(self.session, self.names, [{name: feed[name] for name in read} for feed in feeds])


@frozen
class Acceptance:
    """Held-out samples and the float network's values: where int8 ends, and at the outputs after that."""

    feeds: tuple[Mapping[str, Array], ...]
    exact: Mapping[str, tuple[Array, ...]]
    outputs: Mapping[str, tuple[Array, ...]] = field(default_factory=dict[str, tuple[Array, ...]])
    tail: Tail | None = None
    remainder: Remainder | None = None

    def noise(self, quantised: Quantised) -> float:
        """Squared error over squared signal; 0 is exact.

        The mean over the tensors where int8 ends; with outputs after them, or after the part, the mean of that and
        the means over those outputs.
        """
        found = integer_values(quantised, list(self.exact), self.feeds)
        noises = [mean_ratio(self.exact, found)]
        if self.tail is not None:
            noises.append(self.behind(self.tail, found))
        if self.remainder is not None and self._model_outputs:
            try:
                noises.append(mean_ratio(self._model_outputs, self._of_model(self.remainder, found)))
            except ModelError:  # of what these integers give, while it computes the exact values
                noises.append(HOPELESS)
        return sum(noises) / len(noises)

    def _of_model(
        self, remainder: Remainder, found: Mapping[str, Sequence[Array]]
    ) -> dict[str, tuple[Array, ...]]:
        """The outputs of the whole model, for values where int8 ends."""
        given: list[dict[str, Array]] = []
        for at, feed in enumerate(self.feeds[: len(remainder.feeds)]):
            values = {**feed, **{name: each[at] for name, each in found.items()}}
            if self.tail is not None:
                read = {name: values[name] for name in self.tail.graph.inputs}
                values |= dict(zip(self.tail.outputs, self.tail.session.run(self.tail.outputs, read), strict=True))
            given.append(values)
        return remainder.outputs(given)

    @cached_property
    def _model_outputs(self) -> dict[str, tuple[Array, ...]]:
        """The outputs of the whole model in float, those whose values are finite."""
        found = {} if self.remainder is None else self._of_model(self.remainder, self.exact)
        return {name: values for name, values in found.items() if all(np.isfinite(each).all() for each in values)}

    def behind(self, tail: Tail, found: Mapping[str, Sequence[Array]]) -> float:
        """The mean noise of the outputs after int8: every sample is combined with the errors of several."""
        noise, count = np.zeros(len(tail.outputs)), len(self.feeds)
        pairs = tail.pairs(count)
        ends = [name for name in tail.graph.inputs if name in self.exact]
        errors = {name: [b - a for a, b in zip(self.exact[name], found[name], strict=True)] for name in ends}
        for index, feed in enumerate(self.feeds):
            values = {name: feed[name] for name in tail.graph.inputs if name not in self.exact}
            for step in range(pairs):
                met = {name: self.exact[name][index] + errors[name][(index + step) % count] for name in ends}
                results = tail.session.run(tail.outputs, values | met)
                for at, (name, result) in enumerate(zip(tail.outputs, results, strict=True)):
                    noise[at] += np.square(result.astype(np.float64) - self.outputs[name][index]).sum() / pairs
        signals = [_energy(self.outputs[name]) for name in tail.outputs]
        return float(np.mean([_relative(*each) for each in zip(noise, signals, strict=True)]))

    def better(self, first: Quantised, *others: Quantised) -> Quantised:
        """The network with the least noise; the first one if none has less."""
        noises = [self.noise(each) for each in (first, *others)]
        return (first, *others)[int(np.argmin(noises))]


def integer_values(
    network: Quantised, names: Sequence[str], feeds: Sequence[Mapping[str, Array]]
) -> dict[str, tuple[Array, ...]]:
    """The values of tensors of an integer network under onnxruntime, by sample."""
    from npuc.reference import integer_session

    return _values(integer_session(network.graph, names, len(feeds)), names, feeds)


def _values(run: Any, names: Sequence[str], feeds: Sequence[Mapping[str, Array]]) -> dict[str, tuple[Array, ...]]:
    """The values of tensors in an onnxruntime.InferenceSession, by sample."""
    columns = zip(*(run.run(names, dict(feed)) for feed in feeds), strict=True)
    return dict(zip(names, columns, strict=True))


def mean_ratio(exact: Mapping[str, Iterable[Array]], found: Mapping[str, Iterable[Array]]) -> float:
    """Squared error over squared signal, the mean over tensors."""
    return float(np.mean([ratio(values, found[name]) for name, values in exact.items()]))


def ratio(exact: Iterable[Array], found: Iterable[Array]) -> float:
    """Squared error over squared signal of a tensor in several samples; without signal 1, or 0 if it is exact."""
    noise = sum(float(np.square(b.astype(np.float64) - a).sum()) for a, b in zip(exact, found, strict=True))
    return _relative(noise, _energy(exact))


def _energy(values: Iterable[Array]) -> float:
    return sum(float(np.square(each, dtype=np.float64).sum()) for each in values)


HOPELESS = 1e12
"""The noise of results that are not finite."""


def _relative(noise: float, signal: float) -> float:
    if not np.isfinite(noise):
        return HOPELESS
    return noise / signal if signal else float(noise > 0)


def ends(integer: Graph) -> list[str]:
    """The int8 outputs, and the dequantised tensors on which only network outputs depend, no int8 tensor."""
    before: set[str] = set()
    found: list[str] = []
    for node in reversed(integer.nodes):
        given_out = node.op in ("QuantizeLinear", "Identity") and node.output in integer.outputs
        if given_out and integer.tensors[node.output].dtype in ("int8", "uint8"):
            if node.op == "Identity":
                found.append(node.output)
                before.update(node.inputs)
        elif integer.tensors[node.output].dtype in ("int8", "int16") or before.intersection(node.outputs):
            before.update(node.inputs)
        elif node.op == "DequantizeLinear":
            found.append(node.output)
    return found[::-1]


def acceptance(
    graph: Graph,
    quantised: Quantised,
    feeds: Sequence[Mapping[str, Array]],
    remainder: Callable[[], Remainder] | None = None,
) -> Acceptance:
    """A judge, on these samples, of integer networks whose int8 part ends at the same tensors as this one's.

    remainder: opens the rest of the model, if this is a part of one.
    """
    from npuc.reference import graph_session

    inner = ends(quantised.graph)
    others = [name for name in graph.outputs if name not in inner and name not in graph.inputs]
    behind = [name for name in others if graph.tensors[name].dtype == "float32"]
    names = [*inner, *behind]
    values = _values(graph_session(graph, names), names, feeds)
    exact, outputs = ({name: values[name] for name in kind} for kind in (inner, behind))
    tail = Tail.of(graph, exact, behind) if behind else None
    computes_all = {*inner, *behind, *graph.inputs} >= {*graph.outputs}
    return Acceptance(tuple(feeds), exact, outputs, tail, remainder() if remainder and computes_all else None)


def decibels(noise: float) -> float | None:
    """A noise as a signal-to-noise ratio in dB; None without noise."""
    return None if noise == 0 else float(-10 * np.log10(noise))
