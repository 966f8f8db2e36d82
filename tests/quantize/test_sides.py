"""Zero points of what tables read and write: what a table needs of its input's range, and where 0 stays 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import PADDING
from npuc.quantize.calibration.histograms import EMPTY, computed, histograms
from npuc.quantize.scales import sides
from npuc.quantize.scales.constraints import tensors_of
from npuc.quantize.scales.model_scales import Steps
from npuc.quantize.scales.offsets import IN_BIASES, ZeroPoints
from npuc.quantize.scales.results import node_histograms
from npuc.quantize.scales.sides import one_sided
from npuc.samples.loading import Samples
from npuc.target import target
from tests.graphs.compiling import Case, samples_of, verified
from tests.passes.networks import network, node

ONE = np.ones((1, 1, 1, 1), np.float32)


def found(graph: Graph, x: Array, zero_points: ZeroPoints = IN_BIASES) -> Mapping[str, Steps]:
    """The steps for tensors of a graph all of whose nodes are integer, on one sample."""
    data = Samples({"x": x[None]})
    known = node_histograms(histograms, graph, data, tensors_of(graph.nodes), graph.nodes)
    return one_sided(graph, graph.nodes, list(data.feeds()), known, zero_points)


def line(*nodes: Node, extent: int = 4096, output: str = "y", **constants: Array) -> Graph:
    """Nodes between convolutions of one channel with the weight 1."""
    return network((1, 1, 1, extent), output, node("Conv", "x i", "a"), *nodes, i=ONE, **constants)


def ramp(low: float, high: float, extent: int = 4096) -> Array:
    """Values evenly spread over a range."""
    return np.linspace(low, high, extent, dtype=np.float32).reshape(1, 1, 1, -1)


HARDSWISH = (node("HardSwish", "a", "h"), node("Conv", "h i", "y"))


def test_a_hard_swish_needs_nothing_below_3_and_gives_nothing_below_three_eighths() -> None:
    steps = found(line(*HARDSWISH), ramp(-20, 9))
    read, written = steps["a"], steps["h"]
    assert -3.3 < (-128 - read.zero) * read.scale <= -2.9
    assert 8.5 < (127 - read.zero) * read.scale < 9.6
    assert -0.5 < (-128 - written.zero) * written.scale <= -0.3
    assert 8.5 < (127 - written.zero) * written.scale < 9.6
    assert written.scale < 9 / 127 * 0.6  # steps are little more than half as large


def test_what_was_seen_on_these_samples_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, feeds = line(*HARDSWISH), [{"x": ramp(-20, 9)}]
    known = node_histograms(histograms, graph, Samples({"x": feeds[0]["x"][None]}), ["a", "h"], graph.nodes)
    wider = {
        **known,
        "h": EMPTY.with_values(np.array([2.0**20], np.float32)),
    }  # limits of "a" do not depend on "h"
    asked: list[list[str]] = []

    def noted(
        graph: Graph, feeds: Iterable[Mapping[str, Array]], names: Sequence[str]
    ) -> Iterator[dict[str, Array]]:
        asked.append([*names])
        yield from computed(graph, feeds, names)

    monkeypatch.setattr(sides, "computed", noted)
    alone = one_sided(graph, graph.nodes, feeds, known, IN_BIASES)
    seen: sides.Sides = {}
    for histograms_of in (known, known, wider):
        again = one_sided(graph, graph.nodes, feeds, histograms_of, IN_BIASES, seen)
        assert again["a"] == alone["a"]
    assert asked == [["a", "h"], ["a", "h"]]
    other = line(node("Sigmoid", "a", "h"), node("Conv", "h i", "y"))  # another range of "a" matters
    one_sided(other, other.nodes, feeds, known, IN_BIASES, seen)
    assert asked[2:] == [["a"]]


def test_logits_saturate_nowhere_however_rare_the_largest_are() -> None:
    """4,095 values from -6 to -5 and one of 3: the mean square alone would cut it off."""
    x = ramp(-6, -5)
    x[..., -1] = 3
    steps = found(line(node("Sigmoid", "a", "s"), node("Conv", "s i", "y")), x)["a"]
    assert (-128 - steps.zero) * steps.scale <= -6
    assert (127 - steps.zero) * steps.scale >= 3
    assert steps.scale < 6 / 127  # what it would be with the zero point 0, or less


def test_values_even_around_0_keep_0() -> None:
    steps = found(line(node("Tanh", "a", "t"), node("Conv", "t i", "y")), ramp(-3, 3))
    assert steps == {}


@pytest.mark.parametrize(
    "nodes",
    [
        (node("HardSwish", "a", "h"), node("Mul", "h a", "y")),
        (node("HardSwish", "a", "h"), node("MaxPool", "h", "m", kernel_shape=(1, 2), strides=(1, 2)),
         node("Conv", "m i", "y")),
    ],
)  # fmt: skip
def test_what_products_and_maxima_read_keeps_0(nodes: tuple[Node, ...]) -> None:
    assert "h" not in found(line(*nodes), ramp(-20, 9))


def test_outputs_and_targets_without_such_tables_keep_0() -> None:
    assert set(found(line(*HARDSWISH, output="y h"), ramp(-20, 9))) == {"a"}
    assert found(line(*HARDSWISH), ramp(-20, 9), ZeroPoints(IN_BIASES.reads)) == {}


def test_a_result_is_no_finer_than_its_weights_allow() -> None:
    """A weight of 100 on values up to 16: a step of the input is 1600 / 127, and at most 64 steps of the result.

    The Sigmoid alone would take steps of 6.35 / 254, as it needs -0.1 to 6.25.
    """
    graph = network(
        (1, 1, 1, 64), "y", node("Conv", "x j", "a"), node("Sigmoid", "a", "s"), node("Conv", "s i", "y"),
        i=ONE, j=100 * ONE,
    )  # fmt: skip
    x = np.zeros((1, 1, 1, 64), np.float32)
    x[..., 0], x[..., 1] = 16, -0.001
    steps = found(graph, x)
    assert "a" not in steps or steps["a"].scale >= 1600 / 127 / 64


@pytest.mark.parametrize("machine", [None, "large"])
def test_a_network_of_tables_and_padding_is_exact_at_the_highest_level(
    machine: str | None, tmp_path: Path
) -> None:
    """Zero points go through tables, and through convolutions whose windows reach into padding."""
    random = np.random.default_rng(3)
    w = {name: (random.standard_normal(shape) * 0.4).astype(np.float32) for name, shape in (
        ("u", (6, 3, 3, 3)), ("v", (6, 1, 3, 3)), ("t", (4, 6, 1, 1)))}  # fmt: skip
    pads = {"pads": (1, 1, 1, 1)}
    graph = network(
        (1, 3, 9, 7), "y",
        node("Conv", "x u", "a", **pads), node("HardSwish", "a", "h"), node("Conv", "h v", "d", group=6, **pads),
        node("Sigmoid", "d", "s"), node("Conv", "s t", "y"), **w,
    )  # fmt: skip
    case, feeds = Case("easynpu", "int8", machine=machine, level="2"), samples_of(graph, 24)
    made, steps = target("easynpu").quantised(graph, Samples(feeds), case.options)  # type: ignore[attr-defined]
    assert any(step.kept and "offsets" in step.name for step in steps)
    assert {"a/int8", "h/int8"} <= made.quantised.zeros.keys()
    assert PADDING(made.quantised.graph.producers["d/int8"]) == made.quantised.zeros["h/int8"]
    assert verified(graph, case, tmp_path, 24)["bit_exact"]
