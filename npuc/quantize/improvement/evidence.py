"""The data by which the improvement of a layer is judged: a few calibration samples under a few windows per layer.

Of the float network only the convolution results under the chosen windows are kept, in steps of the layer's
output, and the mean input under the windows; so memory does not depend on the size of the feature maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import GROUP
from npuc.ops.windows import window_of
from npuc.quantize.arithmetic.weights import blocks
from npuc.quantize.calibration.histograms import tensor_values

MOST_WINDOWS = 2048
MOST_TAPS = 1 << 21
"""Bound on the taps of one layer under all its windows."""
MOST_RESULTS = 1 << 24
"""Bound on the results of all layers under their windows, in float32."""
LARGE = 1 << 22
"""Weights of a layer beyond which no second copy of them is made."""


@frozen
class SampledWindows:
    """Windows of a layer: the sample, row and column of the result for each."""

    sample: Array
    row: Array
    column: Array

    @classmethod
    def choose(
        cls, samples: int, extents: Sequence[int], taps: int, seed: int, most: int = MOST_WINDOWS
    ) -> SampledWindows:
        """As many windows of every sample as the limits of this module allow, without repetition.

        most: windows of all samples.
        """
        height, width = extents
        most = max(min(most, MOST_TAPS // taps) // samples, 1)
        count = min(most, height * width)
        random = np.random.default_rng(seed)
        flat = np.concatenate([random.permutation(height * width)[:count] for _ in range(samples)])
        return cls(np.repeat(np.arange(samples), count), flat // width, flat % width)


def taps_under(
    x: Array, node: Node, kernel: tuple[int, ...], places: SampledWindows, groups: int, fill: int = 0
) -> Array:
    """The inputs under the windows: (windows, groups, channels of a group * taps), in the weights' order.

    x: (samples, C, H, W); kernel: the shape of the weights; fill: the value of padding.
    """
    elements = elements_under(places, node, kernel, x.shape[2:])
    first = np.searchsorted(places.sample, np.arange(len(x) + 1))
    found = [take_windows(each, elements[first[at] : first[at + 1]], groups, fill) for at, each in enumerate(x)]
    return np.concatenate(found)


def take_windows(x: Array, elements: Array, groups: int, fill: int = 0) -> Array:
    """The same of one sample x, (C, H, W), by the `elements_under` its windows."""
    found = x.reshape(len(x), -1).take(elements, axis=1)
    outside = elements == OUTSIDE
    if outside.any():
        found[:, outside] = fill
    return np.ascontiguousarray(found.transpose(1, 0, 2)).reshape(len(elements), groups, -1)


OUTSIDE = -1
"""In place of an element: the padding."""


def elements_under(places: SampledWindows, node: Node, kernel: tuple[int, ...], extents: Sequence[int]) -> Array:
    """The elements of a channel, numbered row by row, under the taps of the windows: (windows, taps)."""
    window, (height, width) = window_of(node, kernel[2:]), extents
    row, column = (
        index[:, None] * stride - begin + dilation * taps
        for index, stride, begin, dilation, taps in zip(
            (places.row, places.column),
            window.strides,
            window.begins,
            window.dilations,
            np.indices(window.kernel).reshape(2, -1),
            strict=True,
        )
    )
    outside = (row < 0) | (row >= height) | (column < 0) | (column >= width)
    return np.where(outside, OUTSIDE, row * width + column).astype(np.int32)


def sums(taps: Array, w: Array) -> Array:
    """(windows, Co) sums of products; taps: (windows, groups, K); w: (Co, K)."""
    windows, groups, depth = taps.shape

    def part(rows: slice) -> Array:
        weights = w[rows].astype(taps.dtype, copy=False).reshape(groups, -1, depth)
        return (taps.transpose(1, 0, 2) @ weights.transpose(0, 2, 1)).transpose(1, 0, 2).reshape(windows, -1)

    parts = [part(rows) for rows in row_blocks(w, groups)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def row_blocks(w: Array, groups: int) -> Iterable[slice]:
    """Slices of weights (Co, K), of which a large layer is processed one at a time."""
    return blocks(w) if groups == 1 and w.size > LARGE else [slice(None)]


@frozen
class Witness:
    """A convolution of the float network under its windows: results before the activation, (windows, Co).

    mean: (groups, K), the mean input under the windows over the training samples.
    """

    places: SampledWindows
    results: Array
    mean: Array


@frozen
class Sampled:
    """A few samples, which of them are held out, and the float network's convolution results on them."""

    feeds: tuple[Mapping[str, Array], ...]
    held_out: Array
    witnesses: Mapping[str, Witness]

    @property
    def training(self) -> Array:
        """The samples to learn from, as a mask."""
        return ~self.held_out


class Watch:
    """Convolutions of a float graph, whose results under random windows are recorded, sample by sample.

    held_out: (samples,) bool, the samples that are not learned from. read: the tensors that they read.
    """

    def __init__(self, graph: Graph, nodes: Sequence[Node], held_out: Array) -> None:
        self.graph, self.nodes, self.held_out = graph, nodes, held_out
        self.read = tuple(dict.fromkeys(node.inputs[0] for node in nodes))
        channels = sum(graph.shape(node.output)[1] for node in nodes)
        most = min(MOST_WINDOWS, MOST_RESULTS // max(channels, 1))
        self._places = {node.output: _places(graph, node, len(held_out), most) for node in nodes}
        self._elements = {node.output: self._by_sample(node) for node in nodes}
        self._results, self._means = dict[str, Array](), dict[str, Array]()
        for node in nodes:  # small arrays, made as samples come, would fragment what onnxruntime frees
            windows, taps = self._elements[node.output].shape[1:]
            results, depth = graph.shape(node.inputs[1])[:2]
            self._results[node.output] = np.empty((len(held_out), windows, results), np.float32)
            self._means[node.output] = np.empty((len(held_out), GROUP(node), depth * taps), np.float32)

    def _by_sample(self, node: Node) -> Array:
        """The elements under a convolution's windows, equally many in each sample: (samples, windows, taps)."""
        extents = self.graph.shape(node.inputs[0])[2:]
        found = elements_under(self._places[node.output], node, self.graph.shape(node.inputs[1]), extents)
        return found.reshape(len(self.held_out), -1, found.shape[1])

    def add(self, index: int, values: Mapping[str, Array]) -> None:
        """Records one sample. values: of the tensors that are read."""
        for node in self.nodes:
            w = self.graph.constants[node.inputs[1]]
            taps = take_windows(values[node.inputs[0]][0], self._elements[node.output][index], GROUP(node))
            results = sums(taps, w.reshape(len(w), -1))
            np.add(results, float_bias(self.graph, node), out=self._results[node.output][index])
            if not self.held_out[index]:
                np.mean(taps, axis=0, out=self._means[node.output][index])

    def collect(self, feeds: Sequence[Mapping[str, Array]]) -> Sampled:
        """What was recorded on these samples, all of them."""
        witnesses = {
            name: Witness(
                places,
                self._results[name].reshape(-1, self._results[name].shape[2]),
                np.mean(self._means[name][~self.held_out], axis=0),
            )
            for name, places in self._places.items()
        }
        return Sampled(tuple(feeds), self.held_out, witnesses)


def sample_windows(
    graph: Graph, nodes: Sequence[Node], feeds: Sequence[Mapping[str, Array]], held_out: Array
) -> Sampled:
    """Runs the float graph on the samples and keeps these convolutions' results under random windows.

    held_out: (samples,) bool, the samples that are not learned from.
    """
    watch = Watch(graph, nodes, held_out)
    for index, values in enumerate(tensor_values(graph, feeds, watch.read)):
        watch.add(index, values)
    return watch.collect(feeds)


def float_bias(graph: Graph, node: Node) -> Array:
    """The bias of a float convolution, (Co,); zeros without one."""
    _, weights, *rest = node.inputs
    if rest and rest[0]:
        return graph.constants[rest[0]]
    return np.zeros(len(graph.constants[weights]), np.float32)


def _places(graph: Graph, node: Node, samples: int, most: int) -> SampledWindows:
    _, depth, *kernel = graph.shape(node.inputs[1])
    taps = GROUP(node) * depth * prod(kernel)
    return SampledWindows.choose(samples, graph.shape(node.output)[2:], taps, seed=len(node.output), most=most)
