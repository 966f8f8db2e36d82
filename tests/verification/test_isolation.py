"""Layers alone, whether their weights are in memory together or some after others."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.evidence import float_evidence
from npuc.ir import Array
from npuc.storage.mapped import HEAVY, Pieces
from npuc.verification import isolation
from npuc.verification.isolation import Isolated
from tests.passes.networks import network, node

SIZE = 600
RANDOM = np.random.default_rng(0)
WEIGHTS = {name: (RANDOM.standard_normal((SIZE, SIZE)) + 0.5).astype(np.float32) for name in ("v", "w")}
KNOWN = {"x": (RANDOM.standard_normal((1, SIZE)) + 1).astype(np.float32)}
KNOWN |= {name: (KNOWN["x"] * scale - 1).astype(np.float32) for name, scale in (("a", 2), ("b", 0.5), ("y", 3))}


def layers(precision: str, large: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, isolation.LayerResult]:
    """x @ v, a tanh of it, and the product of that and w: each on what is known of its input."""
    assert WEIGHTS["v"].nbytes > HEAVY
    nodes = [node("MatMul", "x v", "a"), node("Tanh", "a", "b"), node("MatMul", "b w", "y")]
    graph = network((1, SIZE), "y", *nodes, **WEIGHTS)
    content = float_evidence(graph, graph).contents["reference.onnx"]
    assert isinstance(content, Pieces)
    shapes = {name: value.shape for name, value in KNOWN.items()}
    monkeypatch.setattr(isolation, "LARGE", large)
    return dict(Isolated(content, shapes, ["a", "b", "y"], precision, confined=False, few_runs=True)(KNOWN))


@pytest.mark.parametrize("large", [0, WEIGHTS["v"].nbytes, 1 << 30])
@pytest.mark.parametrize(("precision", "unit", "least"), [("fp32", 2.0**-24, 0.0), ("fp16", 2.0**-11, 2.0**-14)])
def test_each_layer_is_computed_on_what_the_machine_has(
    precision: str, unit: float, least: float, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of float64 by numpy; room is 32 units of the sum of magnitudes and of the largest result."""
    found = layers(precision, large, monkeypatch)
    wanted: dict[str, tuple[Array, Array]] = {"b": (np.tanh(KNOWN["a"]), np.tanh(np.abs(KNOWN["a"])))}
    for name, (left, right) in {"a": ("x", "v"), "y": ("b", "w")}.items():
        x, w = KNOWN[left].astype(np.float64), WEIGHTS[right].astype(np.float64)
        wanted[name] = x @ w, np.abs(x) @ np.maximum(np.abs(w), least)
    assert sorted(found) == sorted(wanted)
    for name, (exact, sizes) in wanted.items():
        np.testing.assert_allclose(found[name].exact, exact, rtol=1e-4, atol=1e-3)
        room = 32 * unit * (np.maximum(sizes, least) + np.abs(exact).max())
        np.testing.assert_allclose(found[name].tolerance(), room, rtol=1e-4)


def test_few_weights_are_in_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[list[str]] = []
    really = isolation.standing

    def session(model: object, weights: dict[str, Array], **options: bool) -> object:
        opened.append(sorted(weights))
        return really(model, weights, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(isolation, "standing", session)
    found = layers("fp32", WEIGHTS["v"].nbytes, monkeypatch)
    assert opened == [["v"], ["w"]]
    off = {name: (each.exact + 1e-2).astype(np.float32) for name, each in found.items()}
    assert all(each.wrong(off[name]).any() for name, each in found.items())
    assert opened[2:] == [["v"], ["w"]]  # of the magnitudes, which only results beyond the least error need


def test_the_terms_of_a_long_softmax_may_be_summed_one_after_the_other() -> None:
    """A term of 1 and many small ones, all rounded in the same direction when they are added to it."""
    x = np.full((1, 1 << 16), -13, np.float32)
    x[0, 0] = 0
    graph = network(x.shape, "y", node("Softmax", "x", "y", axis=1))
    content = float_evidence(graph, graph).contents["reference.onnx"]
    (alone,) = dict(
        Isolated(content, {"x": x.shape, "y": x.shape}, ["y"], "fp32", confined=False)({"x": x})
    ).values()
    terms = np.exp(x)
    total = np.cumsum(terms, axis=1, dtype=np.float32)[0, -1]
    assert abs(total / terms.sum(dtype=np.float64) - 1) > 32 * 2.0**-23
    assert not alone.wrong(terms / total).any()
    assert alone.wrong(terms / (total * np.float32(1.01)))[0, 0]


def test_a_network_that_gives_only_integers_has_no_layer_to_judge() -> None:
    """onnxruntime refuses a model without nodes."""
    graph = network(
        (1, SIZE), "y", node("QuantizeLinear", "x s z", "y"), s=np.array(0.1, np.float32), z=np.array(0, np.int8)
    )
    content = float_evidence(graph, graph).contents["reference.onnx"]
    shapes = dict.fromkeys(("x", "y"), (1, SIZE))
    assert dict(Isolated(content, shapes, ["y"], "fp32", confined=False)({"x": KNOWN["x"]})) == {}


def test_a_mean_is_rounded_before_it_is_divided_by_a_deviation_near_0() -> None:
    """A constant 3 less a mean that is an ulp off, over the root of epsilon; another channel has no such room."""
    x = np.full((1, 2, 3, 3), 3, np.float32)
    x[0, 1] = np.arange(9).reshape(3, 3)
    constants = {"s": np.full(2, 2, np.float32), "b": np.ones(2, np.float32)}
    graph = network(x.shape, "y", node("InstanceNormalization", "x s b", "y"), **constants)
    content = float_evidence(graph, graph).contents["reference.onnx"]
    ((_, alone),) = Isolated(content, {"x": x.shape, "y": x.shape}, ["y"], "fp32", confined=False)({"x": x})
    off = alone.exact + np.float32(2 * (np.spacing(np.float32(3)) / np.sqrt(1e-5)))
    assert np.abs(off - alone.exact).max() > 32 * 2.0**-24 * 10
    assert alone.wrong(off)[0].any(axis=(1, 2)).tolist() == [False, True]
    assert alone.wrong(alone.exact + np.float32(0.03)).all()
