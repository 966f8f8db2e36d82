"""The judge of every improvement: the noise that quantisation brings on samples held out.

Judged are the float tensors where int8 ends (the logits before a softmax on the host, say) and the network's
outputs behind them, by the mean of both noises: the worse of the two decides. Outputs alone would not do: behind a
softmax that is sure of most samples they hardly show any noise, or that of a few samples hard to tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from npuc.ir import Array, Graph
from npuc.quantize.network.construction import Quantised


@dataclass(frozen=True)
class Acceptance:
    """Samples held out, and what the float network gives for them: where int8 ends, and at outputs behind that."""

    feeds: tuple[Mapping[str, Array], ...]
    exact: Mapping[str, tuple[Array, ...]]
    outputs: Mapping[str, tuple[Array, ...]] = field(default_factory=dict[str, tuple[Array, ...]])

    def noise(self, quantised: Quantised) -> float:
        """Squared error over squared signal; 0 is exact.

        The mean over the tensors where int8 ends; with outputs behind them, the mean of that and of the mean over
        those outputs.
        """
        from npuc.export_onnx import onnx_bytes
        from npuc.reference import session

        wanted = {**self.exact, **self.outputs}
        names = list(wanted)
        run = session(onnx_bytes(quantised.graph, names))
        found = [run.run(names, dict(feed)) for feed in self.feeds]
        ratio = {
            name: _ratio(wanted[name], [values[position] for values in found])
            for position, name in enumerate(names)
        }
        kinds = (self.exact, self.outputs)
        return float(np.mean([np.mean([ratio[name] for name in kind]) for kind in kinds if kind]))

    def better(self, first: Quantised, *others: Quantised) -> Quantised:
        """The one with the least noise; the first where none has less."""
        noises = [self.noise(each) for each in (first, *others)]
        return (first, *others)[int(np.argmin(noises))]


def _ratio(exact: Sequence[Array], found: Sequence[Array]) -> float:
    signal = sum(float(np.square(each, dtype=np.float64).sum()) for each in exact)
    noise = sum(float(np.square(b.astype(np.float64) - a).sum()) for a, b in zip(exact, found, strict=True))
    return noise / signal if signal else float(noise > 0)


def ends(integer: Graph) -> list[str]:
    """The dequantised tensors on which nothing int8 depends but outputs of the network, and int8 outputs."""
    before: set[str] = set()
    found: list[str] = []
    for node in reversed(integer.nodes):
        given_out = node.op in ("QuantizeLinear", "Identity") and node.output in integer.outputs
        if given_out and integer.tensors[node.output].dtype in ("int8", "uint8"):
            if node.op == "Identity":
                found.append(node.output)
                before.update(node.inputs)
        elif integer.tensors[node.output].dtype == "int8" or before.intersection(node.outputs):
            before.update(node.inputs)
        elif node.op == "DequantizeLinear":
            found.append(node.output)
    return found[::-1]


def acceptance(graph: Graph, quantised: Quantised, feeds: Sequence[Mapping[str, Array]]) -> Acceptance:
    """The judge of integer networks that end int8 at the same float tensors as this one, on these samples."""
    from npuc.reference import graph_session

    inner = ends(quantised.graph)
    behind = [name for name in graph.outputs if name not in inner and graph.tensors[name].dtype == "float32"]
    names = [*inner, *behind]
    run = graph_session(graph, names)
    columns = zip(*(run.run(names, dict(feed)) for feed in feeds), strict=True)
    values = dict(zip(names, columns, strict=True))
    return Acceptance(
        tuple(feeds), {name: values[name] for name in inner}, {name: values[name] for name in behind}
    )


def decibels(noise: float) -> float | None:
    """A noise as a ratio of signal to noise in dB; None without any."""
    return None if noise == 0 else float(-10 * np.log10(noise))
