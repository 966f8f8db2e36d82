"""Samples for models that say what their inputs may be."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.quantize.scales.synthetic import made_up
from tests.passes.networks import network, node


def _inputs(graph: Graph) -> dict[str, Array]:
    found = made_up(graph)
    assert found is not None
    assert not found.synthetic
    return dict(found.inputs)


def test_an_input_that_is_rounded_to_given_steps_takes_values_over_their_whole_range() -> None:
    rounding = node("FakeQuantize", "r", "y", scale=0.5, zero_point=-100, dtype="int8")
    values = _inputs(network((1, 3, 16, 16), "y", node("Reshape", "x", "r", shape=(1, 768)), rounding))["x"]
    assert values.shape[1:] == (1, 3, 16, 16)
    assert values.dtype == np.float32
    assert (values.min(), values.max()) == (-14.0, 113.5)  # 0.5 * (-128 + 100), 0.5 * (127 + 100)


def test_an_8_bit_input_takes_all_its_values() -> None:
    graph = build("g", [Node("Identity", ("x",), ("y",))], {"x": TensorType((1, 40, 40), "uint8")}, ["y"], {})
    assert np.unique(_inputs(graph)["x"]).tolist() == list(range(256))


def test_in_every_second_sample_neighbours_are_alike() -> None:
    rounding = node("FakeQuantize", "x", "y", scale=1.0, zero_point=0, dtype="int8")
    values = _inputs(network((1, 3, 32, 32), "y", rounding))["x"][:, 0].astype(np.float64)

    def correlation(images: Array) -> float:
        centred = images - images.mean(axis=(2, 3), keepdims=True)
        return float((centred[..., 1:] * centred[..., :-1]).mean() / (centred**2).mean())

    assert abs(correlation(values[::2])) < 0.05
    assert correlation(values[1::2]) > 0.5


def test_a_float_input_that_nothing_rounds_has_no_known_range() -> None:
    assert made_up(network((1, 4, 3, 3), "y", node("Conv", "x w", "y"), w=(4, 4, 1, 1))) is None
