from npuc.passes.cleanup.sink_reshapes import sink_reshapes
from tests.passes.networks import assert_same_meaning, network, node, operators, sources


def test_reshape_of_reshape_becomes_one() -> None:
    graph = network((2, 6), "y", node("Reshape", "x", "a", shape=(12,)), node("Reshape", "a", "y", shape=(3, 4)))
    found = sink_reshapes(graph)
    assert operators(found) == ["Reshape"]
    assert sources(found, "y") == ("a", "y")
    assert_same_meaning(graph, found)


def test_reshape_and_back_vanishes() -> None:
    graph = network(
        (2, 6),
        "y",
        node("Relu", "x", "r"),
        node("Reshape", "r", "a", shape=(12,)),
        node("Reshape", "a", "b", shape=(2, 6)),
        node("Sigmoid", "b", "y"),
    )
    found = sink_reshapes(graph)
    assert operators(found) == ["Relu", "Sigmoid"]
    assert_same_meaning(graph, found)


def test_relu_and_clip_move_in_front_of_flatten() -> None:
    graph = network(
        (1, 2, 3, 3),
        "y",
        node("Reshape", "x", "f", shape=(1, 18)),
        node("Relu", "f", "r"),
        node("Min", "r six", "m"),
        node("Gemm", "m w", "y"),
        six=6,
        w=(4, 18),
    )
    found = sink_reshapes(graph)
    assert operators(found) == ["Relu", "Min", "Reshape", "Gemm"]
    assert_same_meaning(graph, found)


def test_a_reshape_with_a_second_reader_stays_in_front() -> None:
    graph = network(
        (1, 2, 3),
        "y",
        node("Reshape", "x", "f", shape=(1, 6)),
        node("Relu", "f", "r"),
        node("Mul", "r f", "y"),
    )
    assert sink_reshapes(graph) is graph


def test_squeezed_operands_are_added_before_the_squeeze() -> None:
    # as TensorFlow writes one-dimensional convolutions: Squeeze, sum, ExpandDims
    graph = network(
        (1, 1, 7, 4),
        "y",
        node("Sigmoid", "x", "s"),
        node("Reshape", "x", "a", shape=(1, 7, 4)),
        node("Reshape", "s", "b", shape=(1, 7, 4)),
        node("Add", "a b", "c"),
        node("Add", "c k", "d"),
        node("Concat", "d c", "e", axis=2),
        node("Reshape", "e", "y", shape=(1, 1, 7, 8)),
        k=(4,),
    )
    found = sink_reshapes(graph)
    assert operators(found) == ["Sigmoid", "Add", "Add", "Concat"]
    assert found.nodes[-1].integer("axis") == 3
    assert_same_meaning(graph, found)


def test_operands_that_lost_different_axes_stay_apart() -> None:
    graph = network(
        (1, 3, 1, 4),
        "y",
        node("Relu", "x", "r"),
        node("Transpose", "r", "t", perm=(0, 2, 1, 3)),
        node("Reshape", "x", "a", shape=(1, 3, 4)),
        node("Reshape", "t", "b", shape=(1, 3, 4)),
        node("Add", "a b", "y"),
    )
    assert sink_reshapes(graph) is graph


def test_softmax_keeps_the_few_axes_of_a_classifier() -> None:
    graph = network((1, 4, 1, 1), "y", node("Reshape", "x", "a", shape=(1, 4)), node("Softmax", "a", "y", axis=1))
    assert sink_reshapes(graph) is graph


def test_a_mean_that_drops_axes_reads_the_tensor_before_the_squeeze() -> None:
    graph = network(
        (2, 1, 7, 4),
        "y",
        node("Reshape", "x", "a", shape=(2, 7, 4)),
        node("ReduceMean", "a", "y", axes=(1,), keepdims=0),
    )
    found = sink_reshapes(graph)
    assert operators(found) == ["ReduceMean"]
    assert found.nodes[0].integers("axes") == (1, 2)
    assert_same_meaning(graph, found)
