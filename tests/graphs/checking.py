"""What must hold of a graph: each pass by itself and all in order keep its meaning, which onnxruntime gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from npuc.errors import NpucError
from npuc.ir import Array, Graph
from npuc.onnx_files.export import to_onnx
from npuc.ops.interpreter import run
from npuc.passes import FLOAT_PASSES
from npuc.passes.expansion.as_images import AsImages
from npuc.passes.expansion.averages import AverageLimits as AverageLimits
from npuc.passes.expansion.averages import PadLongAverages, SplitAveragePool
from npuc.passes.expansion.batches import SplitBatch
from npuc.passes.expansion.images import ImageLimits
from npuc.passes.expansion.products import GemmToConv
from npuc.passes.expansion.split_max_pool import MaxPoolLimits as MaximumLimits
from npuc.passes.expansion.split_max_pool import SplitMaxPool
from npuc.passes.scales import RescaleMixedConcats
from npuc.pipeline import Pass
from npuc.reference import has_integer_products, session
from npuc.registry import TARGETS
from npuc.target import Options, target

Feeds = Mapping[str, Array]

SMALL_IMAGES = ImageLimits(lanes=2, channels=4, extent=3, pixels=4)
SMALL_LIMITS: tuple[Pass, ...] = (
    SplitAveragePool(None, AverageLimits(positions=6, extent=3, stride=2)),
    SplitMaxPool(MaximumLimits(positions=6, extent=3, stride=2, dilation=1)),
    SplitMaxPool(MaximumLimits(positions=4, extent=2, stride=3, dilation=2)),
    PadLongAverages(AverageLimits(positions=6, extent=3, stride=2)),
    GemmToConv(SMALL_IMAGES, 2),
    SplitBatch(SMALL_IMAGES, most_lines=0),
    SplitBatch(SMALL_IMAGES, most_lines=2),
    AsImages(SMALL_IMAGES),
    RescaleMixedConcats(SMALL_IMAGES),
)
"""Passes with limits that small graphs reach."""
FLAT = 1e-3
"""The deviation of values over their mean below which differences from the mean are little but rounding."""
NEAR = 2e-4
"""Of the largest magnitude: folding reorders float32 sums and products."""


@dataclass(frozen=True)
class Finding:
    """A difference, an error or a traceback: where it arose, and what was seen."""

    where: str
    """A pass, a pipeline, or a target with its precision."""
    kind: str
    """Short: findings of the same kind at the same place count as the same while a graph is minimised."""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.kind} {self.detail}".strip()


def difference(expected: Array, found: Array, ties: Array | bool = False) -> str:
    """What differs, or nothing; ties: where integers may be the neighbours."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{expected.dtype}{list(expected.shape)} became {found.dtype}{list(found.shape)}"
    if not expected.size:
        return ""
    if expected.dtype.kind != "f":
        apart = np.abs(expected.astype(np.int64) - found.astype(np.int64))
        away = int(np.where(ties & (apart == 1), 0, apart).max())
        return f"integers differ by {away}" if away else ""
    scale = float(np.abs(expected).max())
    away = np.abs(expected - found)
    if np.isfinite(found).all() and away.max() <= NEAR * scale + 1e-5:
        return ""
    many = np.count_nonzero(~(away <= NEAR * scale + 1e-5))
    return f"differs by {away.max():.3g} of {scale:.3g} in {many} of {away.size}"


def onnxruntime_values(graph: Graph, feeds: Sequence[Feeds]) -> list[dict[str, Array]]:
    """The graph's outputs as onnxruntime computes them."""
    written = to_onnx(graph)
    # its optimisations give another value for a tensor that is an output and is quantised behind a Transpose
    model = session(written, few_runs=not has_integer_products(written))
    named = {each.name for each in model.get_inputs()}
    return [
        dict(
            zip(
                graph.outputs,
                model.run(list(graph.outputs), {n: v for n, v in feed.items() if n in named}),
                strict=True,
            )
        )
        for feed in feeds
    ]


def pipelines() -> dict[str, tuple[Pass, ...]]:
    """The passes of every target in order."""
    found: dict[str, tuple[Pass, ...]] = {}
    for name in TARGETS:
        chosen = target(name)
        found[name] = (*FLOAT_PASSES, *chosen.passes(Options(precision=chosen.precisions[0])))
    return found


@cache
def _pipelines() -> Mapping[str, tuple[Pass, ...]]:
    return pipelines()


@cache
def single_passes() -> Mapping[str, Pass]:
    """Every pass of any target, by name; one with options once for each set of them."""
    found: dict[str, Pass] = {}
    every = (each for passes in _pipelines().values() for each in passes)
    for each in dict.fromkeys((*every, *SMALL_LIMITS)):
        name, count = each.__name__, 1
        while name in found:
            count += 1
            name = f"{each.__name__}#{count}"
        found[name] = each
    return found


def same_meaning(
    graph: Graph, feeds: Sequence[Feeds], expected: Sequence[Mapping[str, Array]], where: str
) -> Iterator[Finding]:
    """Findings where outputs, or other tensors that still have a name of before, are not what they were."""
    names = [name for name in graph.tensors if name in expected[0] and name not in graph.inputs]
    for feed, values in zip(feeds, expected, strict=True):
        try:
            found = run(graph, {name: feed[name] for name in graph.inputs}, names)
        except NpucError as error:
            yield Finding(where, "cannot be run", str(error).splitlines()[0])
            return
        for name in names:
            seen = difference(values[name], found[name], _ties(graph, name, values))
            if seen:
                yield Finding(
                    where,
                    "other values" if name in graph.outputs else "a name means another tensor",
                    f"{name} {seen}",
                )
                return


def _ties(graph: Graph, name: str, values: Mapping[str, Array]) -> Array | bool:
    """Where a tensor's integers are rounded from halves, as far as float32 tells: either neighbour is right."""
    node = graph.producers.get(name)
    if node is None or node.op != "QuantizeLinear" or node.inputs[0] not in values:
        return False
    x, scale = values[node.inputs[0]], np.max(graph.constants[node.inputs[1]])
    steps = x / scale
    return np.abs(steps - np.floor(steps) - 0.5) <= NEAR * np.abs(steps).max(initial=0)


def attempt(each: Pass, graph: Graph, where: str) -> tuple[Graph | None, Finding | None]:
    """The graph after a pass, or what went wrong."""
    try:
        after = each(graph)
        if after is not graph:
            after.check()
    except Exception as error:  # whatever a pass raises is a finding: nothing is refused here
        return None, Finding(
            where, f"raises {type(error).__name__}", str(error).splitlines()[0] if str(error) else ""
        )
    if (after.inputs, after.outputs) != (graph.inputs, graph.outputs):
        return None, Finding(where, "changes the interface")
    return after, None


def check_passes(
    graph: Graph,
    feeds: Sequence[Feeds],
    values: Sequence[Mapping[str, Array]],
    *,
    targets: Sequence[str] = tuple(TARGETS),
    oracle: bool = True,
) -> Iterator[Finding]:
    """Findings of every pass by itself, and of all passes of these targets in order.

    values: what the interpreter gives for every tensor of the graph, a mapping a sample.
    """
    if oracle:
        try:
            oracles = onnxruntime_values(graph, feeds)
        except Exception:
            oracles = []  # onnxruntime has no such form, as cubic Resize of volumes: the interpreter alone judges
        for exact, known in zip(oracles, values, strict=False):
            if _cancels(graph, known):
                continue
            for name, value in exact.items():
                if seen := difference(value, known[name]):
                    yield Finding("interpreter", "not what onnxruntime gives", f"{name} {seen}")
                    return
    for name, each in single_passes().items():
        after, finding = attempt(each, graph, name)
        if finding is not None:
            yield finding
        elif after is not None and after is not graph:
            yield from same_meaning(after, feeds, values, name)
    yield from check_pipelines(graph, feeds, values, targets)


def _cancels(graph: Graph, values: Mapping[str, Array]) -> bool:
    """Whether onnxruntime gives rounding alone: it normalises x as x * a + (b - mean * a), and x is all mean."""
    for node in graph.nodes:
        if node.op == "InstanceNormalization":
            x = values[node.inputs[0]]
            axes = tuple(range(2, x.ndim))
            if x.size and (x.std(axes) < FLAT * np.abs(x.mean(axes))).any():
                return True
    return False


def check_pipelines(
    graph: Graph, feeds: Sequence[Feeds], values: Sequence[Mapping[str, Array]], targets: Sequence[str]
) -> Iterator[Finding]:
    """Findings of all passes in order: a difference is told by the pass that made it."""
    done: dict[tuple[int, ...], tuple[Graph, bool]] = {}
    reported: set[tuple[int, ...]] = set()
    for passes in map(_pipelines().__getitem__, targets):
        stages, key = [graph], tuple[int, ...]()
        failed = False
        for each in passes:
            key = (*key, id(each))
            if key not in done:
                after, finding = attempt(each, stages[-1], each.__name__)
                if finding is not None and key not in reported:
                    reported.add(key)
                    yield finding
                done[key] = (after or stages[-1], finding is not None)
            after, failed = done[key]
            if failed:
                break
            stages.append(after)
        if failed or ((-1, *key) in done):
            continue
        done[(-1, *key)] = (graph, False)
        wrong = next(same_meaning(stages[-1], feeds, values, ""), None)
        if wrong is not None:
            yield from first_wrong(stages, passes, feeds, values)


def first_wrong(
    stages: Sequence[Graph], passes: Sequence[Pass], feeds: Sequence[Feeds], values: Sequence[Mapping[str, Array]]
) -> Iterator[Finding]:
    """The finding of the first stage that differs."""
    for each, before, after in zip(passes, stages, stages[1:], strict=False):
        if after is not before:
            found = next(same_meaning(after, feeds, values, each.__name__), None)
            if found is not None:
                yield found
                return


Check = Callable[[Graph, Sequence[Feeds]], "Finding | None"]
