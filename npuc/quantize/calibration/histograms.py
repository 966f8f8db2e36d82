"""Calibration: the distribution of every tensor's values over the calibration samples, and methods to clip it.

The float graph runs under onnxruntime, one sample at a time, and only histograms are kept, so a calibration set
may be larger than memory. A method chooses a tensor's range, as costs of candidate scales:

minmax      no value saturates
percentile  all but one value in ten thousand are within the range
entropy     the range whose 128 levels lose the least information   (Kullback-Leibler divergence)
mse         the least expected squared error of the tensor, rounding and saturation together
output      as mse, with channels weighted by the gain of the layers that read them: the error at their outputs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import inf, isfinite
from typing import Any, Protocol

import numpy as np

from npuc.errors import DataError
from npuc.flag import CHOICES
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import GROUP
from npuc.quantize.arithmetic.steadiness import ROOM, octave
from npuc.quantize.arithmetic.weights import in_groups

BINS = 2048
MOST_COUNTED = 1 << 17
"""Of more values of a tensor in one sample, evenly spaced ones count for their neighbours."""
NOTHING = 2.0**-100
"""A tensor needs larger values than this for a scale of its own: its scale and bins are normal 32-bit floats."""


@frozen
class Histogram:
    """A histogram of |x|: BINS bins of equal width from 0 to beyond the largest |x|; zeros are not counted.

    The range is a power of two, so bin edges depend neither on the last digits of values nor on their order.
    """

    counts: Array
    width: float

    @property
    def centres(self) -> Array:
        """The |x| at the centre of each bin."""
        return (np.arange(BINS) + 0.5) * self.width

    @property
    def largest(self) -> float:
        """The upper edge of the last bin that holds a value; 0 if every value was zero."""
        filled = np.flatnonzero(self.counts)
        return float((filled[-1] + 1) * self.width) if len(filled) else 0.0

    @property
    def energy(self) -> float:
        """Sum of x squared, by bin centres."""
        return float(self.counts @ self.centres**2)

    def with_values(self, values: Array, gains: Array | None = None, top: float | None = None) -> Histogram:
        """The histogram with these finite values added; bins are merged in pairs until the range covers them all.

        Values up to NOTHING count only if there are no larger ones, together as one of half its size.

        gains: the weight of each value, broadcast against the values; 1 by default. top: their largest magnitude,
        if known.
        """
        top = _largest(values) if top is None else top
        if not top > NOTHING:
            return self if top == 0 or self.counts.any() else TINY
        counts, width = self.counts, self.width
        if self is EMPTY or self is TINY:
            counts = EMPTY.counts
            width = octave(top) / BINS
        while top * (1 + ROOM) >= width * BINS:
            counts = np.concatenate([counts.reshape(-1, 2).sum(1), np.zeros(BINS // 2, counts.dtype)])
            width *= 2
        added = _count(values, width, top) if gains is None else _weigh(values, gains, width)
        return Histogram(counts + added, width)

    def within(self, limit: float) -> Histogram:
        """The histogram without the bins that start at or above a magnitude."""
        return Histogram(np.where(np.arange(BINS) * self.width < limit, self.counts, 0), self.width)

    def error(self, scales: Array, levels: Array | int = 127) -> Array:
        """The expected sum of squared errors at each scale; values saturate `levels` steps above 0.

        Inside the range rounding errors are uniform, s*s/12 per value, and in total no more than if all values
        became 0; outside it the error is |x| - levels*s.
        """
        limit = levels * scales
        inside = np.searchsorted(self.centres, limit, side="right")
        count, total, energy = self._sums
        rest = count[-1] - count[inside], total[-1] - total[inside], energy[-1] - energy[inside]
        beyond = rest[2] - 2 * limit * rest[1] + limit**2 * rest[0]
        return np.maximum(beyond, 0.0) + np.minimum(count[inside] * scales**2 / 12, energy[inside])

    @cached_property
    def _sums(self) -> tuple[Array, Array, Array]:
        """For the first n bins, n = 0..BINS: the number of values, their sum, and their sum of squares."""
        moments = [self.counts * self.centres**power for power in range(3)]
        count, total, energy = (np.concatenate([[0.0], np.cumsum(each)]) for each in moments)
        return count, total, energy


def _largest(values: Array) -> float:
    """The largest |x| in float32; 0 without values, and not finite if a value is not."""
    return float(np.float32(max(float(values.max()), -float(values.min())))) if values.size else 0.0


def _count(values: Array, width: float, top: float) -> Array:
    """The number of values in each bin of this width, without those up to NOTHING.

    Of many values it is estimated, but the bin of the largest magnitude, top, is never empty.
    """
    every = -(-values.size // MOST_COUNTED) | 1  # odd, as the extents of maps are mostly even
    magnitude = np.abs(np.ravel(values)[::every], dtype=np.float32)
    nothing = magnitude <= NOTHING
    if width <= 2 * NOTHING:
        magnitude[nothing] = 0
    step = np.float32((1 + ROOM) / width)
    found = np.bincount((magnitude * step).astype(np.int32), minlength=BINS + 1) * every
    found[0] -= np.count_nonzero(nothing) * every
    last = int(np.float32(top) * step)
    found[last] = max(found[last], 1)
    found[BINS - 1] += found[BINS]  # the largest one, if float32 rounds it up
    return found[:BINS]


def _weigh(values: Array, gains: Array, width: float) -> Array:
    """The same with every value weighted by its gain."""
    magnitude = np.abs(values, dtype=np.float32).ravel()
    weights = np.broadcast_to(gains, values.shape).ravel()[magnitude > NOTHING]
    index = (magnitude[magnitude > NOTHING] * np.float32((1 + ROOM) / width)).astype(np.int32)
    return np.bincount(np.minimum(index, BINS - 1), weights, minlength=BINS)


def uniform(largest: float) -> Histogram:
    """The histogram of a tensor for which only the largest |x| is known."""
    return Histogram(np.ones(BINS, np.int64), largest * (1 - 1e-6) / BINS)


EMPTY = Histogram(np.zeros(BINS, np.int64), 1.0)
TINY = Histogram(np.bincount([BINS // 2 - 1], minlength=BINS), NOTHING / BINS)


REMEDY = "calibrate on samples that keep the network finite, or --deny the node that computes this tensor"


def _refuse(tensor: str, _value: Array) -> Array:
    """Raises DataError (E402)."""
    raise DataError("E402", "its value is not finite on a calibration sample", tensor=tensor, remedy=REMEDY)


def _without_infinities(_tensor: str, value: Array) -> Array:
    """The values with infinite ones and NaN as zero, which does not count."""
    return np.where(np.isfinite(value), value, value.dtype.type(0))


class Count:
    """The histograms of tensors, to which values are added sample by sample; arguments as of `histograms`."""

    def __init__(
        self,
        tensors: Iterable[str],
        domains: Mapping[str, tuple[float, float]] | None = None,
        gains: Mapping[str, Array] | None = None,
        *,
        finite: Callable[[str, Array], Array] = _refuse,
    ) -> None:
        self.found = dict.fromkeys(tensors, EMPTY)
        self.domains, self.gains, self.finite = domains or {}, gains or {}, finite

    def add(self, values: Mapping[str, Array]) -> None:
        """Counts the values of one sample."""
        for name, histogram in self.found.items():
            value = values[name]
            if name in self.domains:
                value = np.clip(value, *self.domains[name])
            top = _largest(value)
            if not isfinite(top):
                value = self.finite(name, value)
                top = _largest(value)
            self.found[name] = histogram.with_values(value, self.gains.get(name), top)


def histograms(
    graph: Graph,
    samples: Iterable[Mapping[str, Array]],
    tensors: Sequence[str],
    domains: Mapping[str, tuple[float, float]] | None = None,
    gains: Mapping[str, Array] | None = None,
    *,
    finite: Callable[[str, Array], Array] = _refuse,
) -> dict[str, Histogram]:
    """The histogram of each named tensor over the samples (each a feed of the graph's inputs).

    domains: limits for tensors of which only values within them matter; values beyond count as the limit.
    gains: the weights of a tensor's values, broadcast against it (`output_gains`).
    finite: removes infinite values and NaN from a tensor that has some, or raises: DataError (E402) by default.
    """
    count = Count(tensors, domains, gains, finite=finite)
    for values in tensor_values(graph, samples, tensors):
        count.add(values)
    return count.found


histograms_of_finite = partial(histograms, finite=_without_infinities)
"""`histograms` without infinities and NaN: synthetic samples may lead to them."""


class HistogramSource(Protocol):
    """A function that finds the histograms of tensors, as `histograms`, or a cache in front of it."""

    def __call__(
        self,
        graph: Graph,
        samples: Iterable[Mapping[str, Array]],
        tensors: Sequence[str],
        domains: Mapping[str, tuple[float, float]] | None = None,
        gains: Mapping[str, Array] | None = None,
        /,
    ) -> dict[str, Histogram]:
        """The histogram of each named tensor over the samples."""
        ...


def source(given: HistogramSource | None, *, synthetic: bool) -> HistogramSource:
    """The given source, or the default for this kind of samples."""
    return given or (histograms_of_finite if synthetic else histograms)


def tensor_values(
    graph: Graph, samples: Iterable[Mapping[str, Array]], tensors: Sequence[str]
) -> Iterator[dict[str, Array]]:
    """The values of tensors of a float graph, sample by sample; each sample is a feed of its inputs.

    The arrays are valid until the next sample, which overwrites them.
    """
    from npuc.reference import graph_session

    given = {*graph.inputs, *graph.constants}
    wanted = [name for name in tensors if name not in given]
    run = graph_session(graph, wanted) if wanted else None
    values: dict[str, Array] = {}
    shared = True
    for feeds in samples:
        if run and values and shared:
            shared = run.refusal is None and _run_into(run.session, feeds, values)
        if run and not (values and shared):
            values = dict(zip(wanted, run.run(wanted, dict(feeds)), strict=True))
        yield {name: np.asarray(values.get(name, feeds.get(name, graph.constant(name)))) for name in tensors}


def _run_into(session: Any, feeds: Mapping[str, Array], values: Mapping[str, Array]) -> bool:
    """Runs an onnxruntime.InferenceSession with these arrays as its outputs; returns whether that is possible.

    It is not if onnxruntime infers a different shape than it computes, as for an AveragePool with ceil_mode.
    """
    from onnxruntime import OrtValue

    binding = session.io_binding()
    try:
        for name, feed in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(feed))
        for name, value in values.items():
            binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(value))
        session.run_with_iobinding(binding)
    except Exception:  # onnxruntime raises many unrelated types
        return False
    return True


def output_gains(graph: Graph, nodes: Sequence[Node]) -> dict[str, Array]:
    """The gain of each channel (axis 1) for errors on their way through its readers, 1 on average, for `output`.

    A convolution contributes the sum of the channel's squared weights, as if rounding errors were independent;
    other readers contribute 1.
    """
    found: dict[str, Array] = {}
    for node in nodes:
        if node.op != "Conv":
            continue
        shape = graph.shape(node.inputs[0])
        squares = np.square(graph.constants[node.inputs[1]], dtype=np.float64)
        gain = in_groups(squares, GROUP(node)).sum(axis=(1, 3)).ravel()
        relative = gain / gain.mean() if gain.any() else np.ones(shape[1])
        column = relative.reshape(1, -1, *(1 for _ in shape[2:]))
        found[node.inputs[0]] = found.get(node.inputs[0], np.zeros(1)) + column
    for name, gain in found.items():
        others = sum(node.op != "Conv" for node in graph.readers[name])
        found[name] = gain + others
    return found


METHODS = CHOICES["method"]
SHARE = 1 - 1e-4
"""Share of the values inside the range that percentile chooses."""
LEVELS = 128
"""Magnitude levels of an int8."""
BEYOND = 1e6
"""The cost of a scale per octave by which its range falls short of the one that a method demands."""


def range_cost(histogram: Histogram, scales: Array, method: str, most: float = inf) -> Array:
    """The cost of each scale for a tensor: relative squared error, plus a penalty for exceeding a method's range.

    histogram: with some value other than 0. most: an upper bound on the values, which bin edges may exceed.
    """
    if method in ("mse", "output"):
        return histogram.error(scales) / histogram.energy
    limit = min(range_limit(histogram, method), most)
    kept = histogram.within(limit)
    if not kept.energy:  # every value is at the limit, where a bin begins
        kept = histogram
    return kept.error(scales) / kept.energy + BEYOND * octaves_above(limit / 127, scales)


def range_limit(histogram: Histogram, method: str) -> float:
    """The magnitude that the range must reach. method: minmax, percentile or entropy."""
    match method:
        case "percentile":
            inside = np.cumsum(histogram.counts) >= SHARE * histogram.counts.sum()
            return float((np.argmax(inside) + 1) * histogram.width)
        case "entropy":
            return _least_divergence(histogram)
        case _:
            return histogram.largest


def octaves_above(value: Array | float, limit: Array | float) -> Array:
    """Octaves by which the value exceeds the limit, beyond the accuracy of a 32-bit float."""
    return np.maximum(np.log2(value / limit) - 1e-6, 0.0)


def _least_divergence(histogram: Histogram) -> float:
    """The range whose quantised histogram is closest to the histogram with its tail gathered in the last bin.

    Source: Migacz, "8-bit Inference with TensorRT", 2017.
    """
    filled = int(np.flatnonzero(histogram.counts)[-1]) + 1
    candidates = range(min(LEVELS, filled), filled + 1, max((filled - LEVELS) // 64, 1))
    divergences = [_divergence(histogram.counts[:filled].astype(np.float64), bins) for bins in candidates]
    return candidates[int(np.argmin(divergences))] * histogram.width


def _divergence(counts: Array, bins: int) -> float:
    """Kullback-Leibler divergence between the first bins, with the tail, and their form in LEVELS levels."""
    gathered = counts[:bins].copy()
    gathered[-1] += counts[bins:].sum()
    level = np.arange(bins) * LEVELS // bins
    filled = counts[:bins] > 0
    total = np.bincount(level, counts[:bins], LEVELS)
    share = np.bincount(level, filled, LEVELS)
    spread_out = np.where(filled, total[level] / np.maximum(share[level], 1), 0)
    p, q = gathered / gathered.sum(), spread_out / max(spread_out.sum(), 1e-30)
    both = (p > 0) & (q > 0)
    lost = p[(p > 0) & (q == 0)].sum()
    return float((p[both] * np.log(p[both] / q[both])).sum() + lost * np.log(BINS))
