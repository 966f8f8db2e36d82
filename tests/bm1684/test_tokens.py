"""Borders of attention and normalisation in 8 bits (network/tokens)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.account import account_of
from npuc.ir import TensorType
from npuc.ops import build
from npuc.samples.loading import Samples, save
from npuc.targets.bm1684.network.tokens import tokens_to_maps
from tests.compiled import checked, program_of
from tests.onnx_models import parse
from tests.passes.networks import assert_same_meaning, network, node, operators


@pytest.mark.parametrize(
    ("left", "right", "rewritten"),
    [
        ((2, 3, 5, 4), (2, 3, 4, 6), True),
        ((2, 3, 5, 6), (2, 3, 6, 4), True),
        ((2, 5, 4), (2, 4, 6), True),
        ((1, 1, 5, 112), (1, 1, 112, 4), True),
        ((1, 1, 5, 113), (1, 1, 113, 4), False),
        ((1, 1, 5, 4), (1, 1, 4, 113), False),
        ((1, 1, 146, 64), (1, 1, 64, 112), True),  # 6 * 146 * 112 of 98,304 words
        ((1, 1, 147, 64), (1, 1, 64, 112), False),
        ((1, 1, 110, 65), (1, 1, 65, 112), False),  # 8 * 110 * 112
        ((2, 3, 5, 4), (2, 1, 4, 6), False),
        ((5, 4), (4, 6), False),
    ],
)
def test_products_whose_maps_fit_are_rewritten(
    left: tuple[int, ...], right: tuple[int, ...], rewritten: bool
) -> None:
    nodes = node("Softmax", "a", "s", axis=len(left) - 1), node("MatMul", "s b", "y")
    graph = build("test", nodes, {"a": TensorType(left), "b": TensorType(right)}, ["y"], {})
    found = tokens_to_maps(graph)
    assert {"Softmax", "MatMul"}.isdisjoint(operators(found)) == rewritten == (found is not graph)
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("tokens", "channels", "mean", "deviation", "rewritten"),
    [
        (5, 16, (2, 5, 1), (2, 5, 1), True),
        (5, 15, (2, 5, 1), (2, 5, 1), False),
        (16, 16, (2, 1, 16), (2, 16, 1), True),  # another difference than from the mean
        (16, 16, (2, 16, 1), (2, 1, 16), False),
    ],
)
def test_tokens_of_enough_channels_are_divided_by_their_own_deviations(
    tokens: int, channels: int, mean: tuple[int, ...], deviation: tuple[int, ...], rewritten: bool
) -> None:
    rows, ones = {"shape": (2, tokens, 1, channels)}, np.ones(tokens, np.float32)
    nodes = [
        node("Reshape", "x", "r", **rows), node("GlobalAveragePool", "r", "g"),
        node("Reshape", "g", "m", shape=mean), node("Sub", "x m", "d"), node("Mul", "d d", "q"),
        node("Reshape", "q", "p", **rows), node("GlobalAveragePool", "p", "v"),
        node("BatchNormalization", "v one small zero one", "e", epsilon=0.0), node("Sqrt", "e", "s"),
        node("Reshape", "s", "t", shape=deviation), node("Div", "d t", "y"),
    ]  # fmt: skip
    graph = network((2, tokens, channels), "y", *nodes, one=ones, small=ones / 1000, zero=0 * ones)
    found = tokens_to_maps(graph)
    assert ("Div" not in operators(found)) == rewritten
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("channel", "token", "mean", "place"),
    [(1, 1, 0, "npu"), (1, 1, 1, "npu"), (1, 1e4, 0, "host"), (200, 1, 0, "host"), (1, 1, 100, "host"),
     (1, 1e25, 0, "host")],
)  # fmt: skip
def test_normalisation_of_which_8_bits_lose_too_much_is_left_to_the_host(
    channel: float, token: float, mean: float, place: str, tmp_path: Path
) -> None:
    """Sizes that differ by channel or by token, and a mean far from 0; squares beyond float32."""
    x = np.random.default_rng(2).normal(mean, 1, (8, 1, 16, 32)).astype(np.float32)
    x[..., 3] *= channel
    x *= np.geomspace(1, token, 16, dtype=np.float32)[:, None]
    save(tmp_path / "x.npz", {"x": x})
    text = "g (float[1,16,32] x) => (float[1,16,32] y) { y = LayerNormalization(x, s, b) }"
    model = parse(text, s=np.ones(32, np.float32), b=np.zeros(32, np.float32))
    program = program_of(model, tmp_path, "bm1684", {"precision": "int8"}, [tmp_path / "x.npz"])
    assert [each.place for each in account_of(program.manifest)] == [place]


@pytest.mark.parametrize(("token", "places"), [(1, ["npu"] * 4), (100, ["npu", "host", "host", "npu"])])
def test_a_sum_whose_8_bits_are_lost_in_its_normalisation_is_left_to_the_host(
    token: float, places: list[str], tmp_path: Path
) -> None:
    """The sum of two maps, one with tokens of other sizes: all are of one size behind the normalisation."""
    random = np.random.default_rng(2)
    x = random.normal(0, 1, (8, 1, 16, 32)).astype(np.float32)
    x *= np.geomspace(1, token, 16, dtype=np.float32)[:, None]
    save(tmp_path / "x.npz", {"x": x})
    text = """g (float[1,16,32] x) => (float[1,16,32] y)
        { m = MatMul(x, u)\n a = Add(x, m)\n n = LayerNormalization(a, s, b)\n y = MatMul(n, v) }"""
    u, v = (random.normal(0, size, (32, 32)).astype(np.float32) for size in (0.01, 0.1))
    model = parse(text, u=u, v=v, s=np.ones(32, np.float32), b=np.zeros(32, np.float32))
    program = program_of(model, tmp_path, "bm1684", {"precision": "int8"}, [tmp_path / "x.npz"])
    assert [each.place for each in account_of(program.manifest)] == places
    report = checked(program, tmp_path, Samples({"x": x}))
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 25


@pytest.mark.parametrize(
    ("base", "reader", "places"),
    [
        ("c = Relu(x)", "Sigmoid(p)", ["host"]),  # may be 0
        ("s = Exp(x)\n c = Conv(s, w)", "Sigmoid(p)", ["npu"]),
        ("s = Exp(x)\n c = Conv(s, w)", "Mul(p, p)", ["npu"]),
        ("s = Exp(x)\n c = Conv(s, u)", "Mul(p, p)", ["npu", "host"]),  # a negative weight
        ("s = Mul(x, x)\n c = Conv(s, w, one)", "Mul(p, p)", ["npu"]),
        ("s = Mul(x, x)\n c = Conv(s, w)", "Mul(p, p)", ["npu", "host"]),
        ("s = Mul(x, z)\n c = Conv(s, w, one)", "Mul(p, p)", ["npu", "host"]),
    ],
)
def test_roots_of_what_is_positive_are_tables_whatever_reads_them(
    base: str, reader: str, places: list[str], tmp_path: Path
) -> None:
    x = np.random.default_rng(2).normal(0.5, 1, (8, 1, 8, 4, 4)).astype(np.float32)
    save(tmp_path / "x.npz", {"x": x})
    kernel = np.full((8, 8, 1, 1), 0.25, np.float32)
    constants = {"u": kernel - np.eye(8, dtype=np.float32)[..., None, None] * 0.3, "one": np.ones(8, np.float32)}
    header = "g (float[1,8,4,4] x) => (float[1,8,4,4] y) <float e = {-0.5}>"
    text = f"{header} {{ z = Neg(x)\n {base}\n r = Relu(c)\n p = Pow(r, e)\n y = {reader} }}"
    program = program_of(
        parse(text, w=kernel, **constants), tmp_path, "bm1684", {"precision": "int8"}, [tmp_path / "x.npz"]
    )
    assert [each["place"] for each in program.manifest["report"]["partitions"]] == places
