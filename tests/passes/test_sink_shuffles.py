"""sink_shuffles: shuffles between grouped convolutions."""

import numpy as np

from npuc.ir import Graph
from npuc.passes.expansion.permute_channels_by_conv import PermuteChannelsByConv
from npuc.rewrites import rewrites
from npuc.targets.easynpu.network.passes import expand_groups, sink_shuffles
from tests.passes.networks import assert_same_meaning, network, node, operators, sources
from tests.passes.test_permute_channels_by_conv import shuffle

permute_channels_by_conv = PermuteChannelsByConv(16)


def unit(reader_group: int = 2) -> Graph:
    """A unit of ShuffleNet on 8 channels, in two groups."""
    return expand_groups(
        network(
            (1, 8, 3, 4),
            "y",
            node("Conv", "x w k", "a", group=2, activation="Relu"),
            *shuffle("a", "b", 2, 8),
            node("Conv", "b v l", "c", group=8, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
            node("Conv", "c u", "y", group=reader_group),
            w=(8, 4, 1, 1),
            k=(8,),
            v=(8, 1, 3, 3),
            l=(8,),
            u=(8, 8 // reader_group, 1, 1),
        )
    )


def test_the_shuffle_moves_behind_the_depthwise_convolution_and_into_the_next() -> None:
    graph = unit()
    found = sink_shuffles(graph)
    assert operators(found) == ["Conv+Relu", "Conv", "Gather", "Conv"]
    assert_same_meaning(graph, found)
    assert sink_shuffles(found) is found
    assert sources(found, "c") == ("br", "bt", "b")
    absorbed = permute_channels_by_conv(found)
    assert operators(absorbed) == ["Conv+Relu", "Conv", "Conv"]
    assert_same_meaning(graph, absorbed)


def test_the_report_calls_it_exact() -> None:
    graph = unit()
    (found,) = rewrites("sink_shuffles", graph, sink_shuffles(graph), lambda _graph, _node: 0)
    assert str(found).endswith("-> Gather, exact")


def test_successive_outputs_of_the_first_convolution_read_one_group() -> None:
    found = permute_channels_by_conv(sink_shuffles(unit()))
    used = found.constants[found.nodes[0].inputs[1]].any(axis=(2, 3))
    assert np.array_equal(used, np.kron(np.eye(2), np.ones((4, 4))))


def test_a_shuffle_stays_where_a_depthwise_or_no_convolution_follows() -> None:
    graph = unit(8)
    assert sink_shuffles(graph) is graph


def test_a_shuffle_that_another_node_reads_stays() -> None:
    graph = expand_groups(
        network(
            (1, 8, 3, 4),
            "y",
            node("Conv", "x w", "a", group=2),
            *shuffle("a", "b", 2, 8),
            node("Conv", "b v", "c", group=8),
            node("Conv", "c u", "d"),
            node("Add", "d b", "y"),
            w=(8, 4, 1, 1),
            v=(8, 1, 1, 1),
            u=(8, 8, 1, 1),
        )
    )
    assert sink_shuffles(graph) is graph


def test_a_shuffle_of_a_dense_convolution_stays() -> None:
    graph = network(
        (1, 8, 3, 4),
        "y",
        node("Conv", "x w", "a"),
        *shuffle("a", "b", 2, 8),
        node("Conv", "b v", "c", group=8),
        node("Conv", "c u", "y"),
        w=(8, 8, 1, 1),
        v=(8, 1, 1, 1),
        u=(8, 8, 1, 1),
    )
    assert sink_shuffles(graph) is graph
