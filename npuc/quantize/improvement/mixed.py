"""The choice of a few layers that int8 costs most, for int16 or for the host, in float (`--precision mixed`).

The noise that each convolution adds to that of its inputs is measured in one pass of both networks over held-out
samples. Those that add the most per multiply-accumulate are removed from the integer network one by one, and the
reduction of the final noise is measured on the same samples.
They are moved to the host in that order, as long as the noise falls and the host has capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from time import process_time

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import SELECTS
from npuc.ops.products import macs
from npuc.quantize.improvement.acceptance import Acceptance, decibels, ends
from npuc.quantize.improvement.search import Trial, TrialNetwork, judge_of, numbers, pick_feeds, teaches
from npuc.quantize.network.construction import SHIFTED, LayerEncoding, Quantised
from npuc.samples.loading import Samples
from npuc.text.terminal import short

MOST_MACS = 0.1
"""Share of the convolutions' multiply-accumulates that the host may take."""
FEWER = 10**-0.01
"""A layer is moved if the noise falls by 0.1 dB."""
WORTH = 10**-0.05
"""The host is used at all if the noise of the improved network falls by half a dB."""
MOST_SAMPLES = 16
MOST_MEASURED = 8
"""The number of candidates measured individually."""
REASON = "int8 would cost accuracy here (--precision mixed)"
"""The reason reported for such a layer."""

Host = frozenset[str]
"""Names of the nodes that the host computes."""
Result = tuple[TrialNetwork, tuple[Trial, ...]]


def nodes_without(nodes: Sequence[Node], host: Host) -> tuple[Node, ...]:
    """The nodes that the host does not compute."""
    return tuple(node for node in nodes if node.name not in host)


def mix_precision(
    graph: Graph,
    drawn: Callable[[Host], Quantised],
    best: Callable[[Host], Result],
    samples: Samples,
    layers: LayerEncoding = SHIFTED,
    wide: Host = frozenset(),
    most: float = MOST_MACS,
) -> Result:
    """The best network with these samples, with a few layers on the host or in int16 if that is worthwhile.

    drawn: the integer network of the float graph without these nodes; best: the same, improved. layers: how its
    convolutions are read. wide: the nodes that `drawn` and `best` put into int16 instead of leaving them to the
    host. most: the share of the convolutions' multiply-accumulates that may move. Nothing is moved on the basis of
    samples that do not teach (`teaches`).
    """
    nowhere: Host = frozenset()
    plain = drawn(nowhere)
    if not teaches(samples) or not ends(plain.graph):
        return best(nowhere)
    places = numbers(samples, MOST_SAMPLES)[1]
    judge = judge_of(graph, plain, samples, pick_feeds(samples, places)[0], places)
    array = best(nowhere)
    started = process_time()
    shares = _noisiest(graph, plain, candidates(graph, plain, layers, most), judge.feeds)
    host = _choose_host(judge, drawn, shares, most)
    if not host:
        return array
    other = best(host)
    before, after = (judge.noise(each[0].quantised) for each in (array, other))
    kept = after < before * WORTH
    share = sum(shares[name] for name in host)
    step = Trial(_title(host, share, wide), kept, decibels(before), decibels(after), process_time() - started)
    network, steps = other if kept else array
    return network, (*steps, step)


def _title(host: Host, share: float, wide: Host) -> str:
    places = {"in int16": host & wide, "on the host": host - wide}
    named = {place: ", ".join(f"'{short(each)}'" for each in sorted(names)) for place, names in places.items()}
    told = "; ".join(f"{place}: {names}" for place, names in named.items() if names)
    return f"{told}, {100 * share:.2g} % of the MACs"


def candidates(
    graph: Graph, plain: Quantised, layers: LayerEncoding = SHIFTED, most: float = MOST_MACS
) -> dict[str, float]:
    """The named convolutions that take at most this share of all MACs, and their shares."""
    read = (layers.layer(plain, node) for node in plain.graph.nodes)
    integer = {layer.source for layer in read if layer is not None}
    counted = {node: macs(node, graph.tensors) for node in graph.nodes if node.op == "Conv"}
    names = Counter(node.name for node in graph.nodes)
    whole = sum(counted.values())
    return {
        node.name: counted[node] / whole
        for node in graph.nodes
        if node.op == "Conv"
        and node.output in integer
        and names[node.name] == 1
        and not SELECTS(node)
        and counted[node] <= most * whole
    }


def _noisiest(
    graph: Graph, plain: Quantised, shares: Mapping[str, float], feeds: Sequence[Mapping[str, Array]]
) -> dict[str, float]:
    """The candidates that add the most noise to that of their noisiest input, per multiply-accumulate."""
    nodes = [node for node in graph.nodes if node.op == "Conv" and node.name in shares]
    noise = tensor_noises(graph, plain, {name for node in nodes for name in (*node.inputs, node.output)}, feeds)

    def density(node: Node) -> float:
        own = noise.get(node.output, 0.0) - max(noise.get(name, 0.0) for name in node.inputs)
        return own / shares[node.name]

    return {node.name: shares[node.name] for node in sorted(nodes, key=density, reverse=True)[:MOST_MEASURED]}


def tensor_noises(
    graph: Graph, plain: Quantised, wanted: Collection[str], feeds: Sequence[Mapping[str, Array]]
) -> dict[str, float]:
    """Squared error over squared signal of float tensors that have an integer form."""
    from npuc.onnx_files.export import to_onnx
    from npuc.reference import graph_session, session

    stands = {tensor: name for name, tensor in plain.floats.items() if tensor in wanted}
    if not stands:  # no candidates
        return {}
    floats, integers = list(stands), list(stands.values())
    exact, integer = graph_session(graph, floats), session(to_onnx(plain.graph, integers))
    signal, error = np.zeros(len(stands)), np.zeros(len(stands))
    for feed in feeds:
        pairs = zip(exact.run(floats, dict(feed)), integer.run(integers, dict(feed)), strict=True)
        for at, (value, found) in enumerate(pairs):
            name = integers[at]
            steps = found.astype(np.float32) - plain.zeros.get(name, 0)
            signal[at] += np.square(value, dtype=np.float64).sum()
            error[at] += np.square(steps * np.float32(plain.scales[name]) - value, dtype=np.float64).sum()
    return {tensor: error[at] / signal[at] for at, tensor in enumerate(floats) if signal[at]}


def _choose_host(
    judge: Acceptance, drawn: Callable[[Host], Quantised], shares: Mapping[str, float], most: float
) -> Host:
    """The candidates that together reduce the noise most: the most sensitive first."""
    host: Host = frozenset()
    least = judge.noise(drawn(host))
    alone = {name: judge.noise(drawn(frozenset({name}))) for name in shares}
    for name in sorted(shares, key=alone.__getitem__):
        if alone[name] >= least and not host:
            break
        together = host | {name}
        if sum(shares[each] for each in together) > most:
            continue
        noise = judge.noise(drawn(together))
        if noise < least * FEWER:
            host, least = together, noise
    return host
