"""What onnxruntime's optimiser writes is read as ONNX operators: as onnxruntime computes the original node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from npuc import api
from npuc.account import account_of
from npuc.errors import NpucError
from npuc.frontend import load
from npuc.ir import Array
from npuc.reference import graph_session, session
from tests.onnx_models import network, parse

RANDOM = np.random.default_rng(5)
MS = "com.microsoft"


def values(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def fed(op: str, shapes: Sequence[tuple[int, ...] | Array | None], outputs: int = 1, **attributes: Any) -> Any:
    """A node whose first input is fed; the others are constants of these shapes or values, None is absent."""
    return op, shapes, outputs, attributes


def angles(steps: int, half: int) -> tuple[Array, Array]:
    at = np.arange(steps)[:, None] / 3.0 ** np.arange(half)
    return np.cos(at).astype(np.float32), np.sin(at).astype(np.float32)


def packed(bits: int, n: int, k: int, block: int, zero: str) -> list[Array | None]:
    """Weights, scales and zero points of MatMulNBits: of integers, of floats, or none."""
    blocks = -(-k // block)
    given: list[Array | None] = [
        RANDOM.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8),
        np.abs(values(n, blocks)) + 0.1,
    ]
    if zero == "integers":
        given.append(RANDOM.integers(0, 256, (n, -(-blocks * bits // 8)), dtype=np.uint8))
    return given


CASES: dict[str, Any] = {
    "Gelu": fed("Gelu", [(2, 6)]),
    "BiasGelu": fed("BiasGelu", [(2, 3, 6), (6,)]),
    "FastGelu": fed("FastGelu", [(2, 6)]),
    "FastGelu with a bias": fed("FastGelu", [(2, 3, 6), (6,)]),
    "QuickGelu": fed("QuickGelu", [(2, 6)]),
    "QuickGelu of alpha 1": fed("QuickGelu", [(2, 6)], alpha=1.0),
    "SkipLayerNormalization": fed("SkipLayerNormalization", [(2, 3, 6), (2, 3, 6), (6,)]),
    "with beta": fed("SkipLayerNormalization", [(2, 3, 6), (2, 3, 6), (6,), (6,)], epsilon=0.1),
    "with beta and bias": fed("SkipLayerNormalization", [(2, 3, 6), (2, 3, 6), (6,), (6,), (6,)]),
    "with bias and the sum": fed("SkipLayerNormalization", [(2, 3, 6), (2, 3, 6), (6,), None, (6,)], 4),
    "with the sum": fed("SkipLayerNormalization", [(2, 3, 6), (3, 6), (6,)], 4),
    "simplified": fed("SkipSimplifiedLayerNormalization", [(2, 3, 6), (2, 3, 6), (6,)]),
    "simplified with all": fed("SkipSimplifiedLayerNormalization", [(2, 3, 6), (1, 3, 6), (6,), (6,)], 4),
    "FusedConv": fed("FusedConv", [(1, 2, 5, 5), (4, 2, 3, 3)]),
    "of Relu": fed("FusedConv", [(1, 2, 5, 5), (4, 2, 3, 3), (4,)], activation="Relu", pads=[1, 1, 1, 1]),
    "of LeakyRelu": fed("FusedConv", [(1, 4, 5, 5), (4, 2, 3, 3), (4,)], activation="LeakyRelu",
        activation_params=[0.2], group=2),
    "of Clip": fed("FusedConv", [(1, 2, 5, 5), (4, 2, 3, 3)], activation="Clip", activation_params=[-0.5, 0.5]),
    "of HardSigmoid": fed("FusedConv", [(1, 2, 5, 5), (4, 2, 1, 1)], activation="HardSigmoid",
        activation_params=[0.2, 0.4]),
    "with a sum": fed("FusedConv", [(1, 2, 5, 5), (4, 2, 3, 3), (4,), (1, 4, 3, 3)], activation="Relu"),
    "with a sum and no more": fed("FusedConv", [(1, 2, 5, 5), (4, 2, 3, 3), None, (1, 4, 3, 3)], strides=[1, 1]),
    "FusedGemm": fed("FusedGemm", [(3, 5), (5, 4)], activation="Relu"),
    "of LeakyRelu, turned": fed("FusedGemm", [(3, 5), (4, 5), (4,)], activation="LeakyRelu", activation_alpha=0.3,
        transB=1, alpha=2.0),
    "of Tanh": fed("FusedGemm", [(5, 3), (5, 4), (3, 4)], activation="Tanh", transA=1, beta=0.5),
    "FusedMatMul": fed("FusedMatMul", [(2, 3, 4), (2, 4, 5)]),
    **{f"FusedMatMul {a}{b}, batches {c}{d}": fed("FusedMatMul", [left, right], alpha=0.5, transA=a, transB=b,
        transBatchA=c, transBatchB=d) for a, b, c, d, left, right in ((1, 0, 0, 0, (2, 4, 3), (2, 4, 5)),
        (0, 1, 0, 0, (2, 3, 4), (2, 5, 4)), (1, 1, 0, 0, (2, 4, 3), (2, 5, 4)), (0, 0, 1, 0, (3, 2, 4), (2, 4, 5)),
        (0, 0, 0, 1, (2, 3, 4), (4, 2, 5)), (0, 0, 1, 1, (3, 2, 4), (4, 2, 5)),
        (0, 1, 1, 1, (3, 2, 6, 4), (5, 2, 6, 4)), (1, 0, 1, 0, (4, 2, 6, 3), (2, 6, 4, 5)),
        (1, 1, 1, 1, (4, 2, 3), (5, 2, 4)))},
    **{f"MatMulNBits {bits} {k} {block} {zero}": fed("MatMulNBits", [(3, k), *packed(bits, 5, k, block, zero)],
        bits=bits, N=5, K=k, block_size=block) for bits in (4, 8) for k,
        block in ((32, 16), (40, 16), (16, 32)) for zero in ("none", "integers")},
    "MatMulNBits with a bias": fed("MatMulNBits", [(2, 3, 32), *packed(4, 5, 32, 32, "integers"), None, (5,)],
        bits=4, N=5, K=32, block_size=32),
    **{f"RotaryEmbedding {shape} {more}": fed("RotaryEmbedding", [shape, positions, *angles(9, half)],
        **more) for shape, half, positions, more in (((2, 3, 16), 4, np.array([0]), {}),
        ((2, 3, 16), 4, np.array([5]), {"interleaved": 1}), ((2, 3, 16), 4, np.array([[0, 1, 2], [6, 7, 8]]), {}),
        ((2, 2, 3, 8), 4, np.array([[0, 1, 2], [2, 5, 1]]), {"interleaved": 1}),
        ((2, 3, 16), 2, np.array([1]), {"num_heads": 2, "rotary_embedding_dim": 4}),
        ((2, 2, 3, 8), 3, np.array([1]), {"num_heads": 2, "rotary_embedding_dim": 6, "interleaved": 1}))},
    "LayerNormalization at opset 12": fed(":LayerNormalization", [(2, 3, 6), (6,), (6,)], epsilon=0.01),
    "SimplifiedLayerNormalization": fed(":SimplifiedLayerNormalization", [(2, 3, 6), (6,)], axis=-1),
}  # fmt: skip


def model_of(
    op: str, given: Sequence[Any], outputs: int, attributes: Mapping[str, Any]
) -> tuple[onnx.ModelProto, Array]:
    x = values(*given[0])
    constants = {
        f"c{at}": each if isinstance(each, np.ndarray) else values(*each)
        for at, each in enumerate(given[1:])
        if each is not None
    }
    names = ["x", *("" if each is None else f"c{at}" for at, each in enumerate(given[1:]))]
    found = ["y", "", "", "total"][:outputs]
    domain = "" if op.startswith(":") else MS
    made = helper.make_node(op.lstrip(":"), names, found, domain=domain, **attributes)
    return network([made], x.shape, constants, " ".join(filter(None, found)), 12, com_microsoft=1), x


@pytest.mark.parametrize("name", CASES)
def test_a_fused_node_is_read_as_onnxruntime_computes_it(name: str, tmp_path: Path) -> None:
    model, x = model_of(*CASES[name])
    onnx.save(model, tmp_path / "m.onnx")
    names = [each.name for each in model.graph.output]
    expected = session(tmp_path / "m.onnx").run(names, {"x": x})
    found = graph_session(load(tmp_path / "m.onnx"), names).run(names, {"x": x})
    for exact, other in zip(expected, found, strict=True):
        assert exact.shape == other.shape
        np.testing.assert_allclose(other, exact, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("case", "code"), [
    (fed("FusedConv", [(1, 2, 5, 5), (4, 2, 3, 3)], activation="Nothing"), "E202"),
    (fed("FusedGemm", [(3, 5), (5, 4)], activation="Selu"), "E202"),
    (fed("FusedMatMul", [(3, 5), (5, 4)], transBatchA=1), "E105"),
    (fed("MatMulNBits", [(3, 32), *packed(4, 5, 32, 16, "none")], bits=4, N=5, K=33, block_size=16), "E105"),
    (fed("MatMulNBits", [(3, 32), *packed(4, 5, 32, 16, "none")], bits=3, N=5, K=32, block_size=16), "E202"),
    (fed("MatMulNBits", [(3, 32), *packed(4, 5, 32, 16, "none")], N=5, K=32), "E105"),
    (fed("RotaryEmbedding", [(2, 3, 16), np.array([7]), *angles(9, 4)]), "E105"),
    (fed("RotaryEmbedding", [(2, 3, 16), np.array([-1]), *angles(9, 4)]), "E105"),
    (fed("RotaryEmbedding", [(2, 3, 16), np.array([1]), *angles(9, 4)], scale=2.0), "E202"),
])  # fmt: skip
def test_what_a_fused_node_may_not_be_is_refused(case: Any, code: str, tmp_path: Path) -> None:
    onnx.save(model_of(*case)[0], tmp_path / "m.onnx")
    with pytest.raises(NpucError) as caught:
        load(tmp_path / "m.onnx")
    assert caught.value.problems[0].code == code


NETWORKS = {
    "convolutions": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2,6,6] x) => (float[1,2,6,6] y) {
            a = Conv <pads = [1,1,1,1]> (x, w)
            b = Relu(a)
            c = Conv <pads = [1,1,1,1]> (b, w)
            d = Add(c, x)
            e = Relu(d)
            f = Conv <pads = [1,1,1,1]> (e, w)
            y = LeakyRelu <alpha = 0.3> (f)
        }""",
    "products": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[3,6] x) => (float[3,3] y) {
            a = Gemm <transB = 1> (x, v)
            b = Relu(a)
            t = Transpose <perm = [1,0]> (b)
            m = MatMul(b, t)
            h = Constant <value_float = 0.5> ()
            y = Mul(m, h)
        }""",
    "a transformer's block": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3,6] x) => (float[2,3,6] y) {
            m = MatMul(x, v)
            a = Add(m, u)
            r = Constant <value_float = 1.4142135> ()
            i = Div(a, r)
            e = Erf(i)
            o = Constant <value_float = 1.0> ()
            p = Add(e, o)
            q = Mul(a, p)
            h = Constant <value_float = 0.5> ()
            k = Mul(q, h)
            s = Add(k, x)
            y = LayerNormalization <axis = -1> (s, u, u)
        }""",
}
WRITTEN = {
    "convolutions": {"FusedConv"},
    "products": {"FusedGemm", "FusedMatMul"},
    "a transformer's block": {"Gelu", "SkipLayerNormalization"},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_that_onnxruntime_optimised_is_read_whole(name: str, tmp_path: Path) -> None:
    model = parse(NETWORKS[name], w=values(2, 2, 3, 3) / 3, v=values(6, 6) / 3, u=values(6) / 3)
    onnx.save(model, tmp_path / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    written = {node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node}
    assert written >= WRITTEN[name], written
    x = values(*(each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim))
    (expected,) = session(tmp_path / "m.onnx").run(["y"], {"x": x})
    (found,) = graph_session(load(tmp_path / "optimised.onnx"), ["y"]).run(["y"], {"x": x})
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("case", "macs"),
    [
        (fed("FusedGemm", [(3, 5), (5, 4), (4,)], activation="Tanh"), 60),
    ],
)
def test_a_target_without_the_activation_runs_what_it_is_fused_with(case: Any, macs: int) -> None:
    model, x = model_of(*case)
    program = api.compile(model, "nvdla-small", level=0, calibration=np.stack([x, x / 2])).program
    (entry,) = account_of(program.manifest)
    assert (entry.op, entry.place, entry.macs_on_npu) == (case[0], "split", macs)
    assert [each.op for each in entry.problems] == [case[3]["activation"]]


@pytest.mark.parametrize("attributes", [
    {"activation": 3}, {"activation": "LeakyRelu", "activation_params": "0.2"},
    {"activation": "LeakyRelu", "activation_params": [1]},
])  # fmt: skip
def test_an_activation_of_another_type_is_refused(attributes: dict[str, Any], tmp_path: Path) -> None:
    onnx.save(model_of(*fed("FusedConv", [(1, 2, 5, 5), (4, 2, 3, 3)], **attributes))[0], tmp_path / "m.onnx")
    with pytest.raises(NpucError) as refused:
        load(tmp_path / "m.onnx")
    assert [(each.code, each.op) for each in refused.value.problems] == [("E105", "FusedConv")]


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("positions", [True, False])
def test_embeddings_are_sums_of_rows(segments: bool, positions: bool, tmp_path: Path) -> None:
    held = {
        "word": values(9, 6), "position": values(5, 6), "segment": values(2, 6), "gamma": values(6),
        "beta": values(6), "at": np.array([[2, 0, 1]], np.int32), "ids": np.array([[0, 8, 3]], np.int32),
        "kinds": np.array([[0, 1, 1]], np.int32),
    }  # fmt: skip
    kinds = ("kinds", "segment") if segments else ("", "")
    names = ["ids", kinds[0], "word", "position", kinds[1], "gamma", "beta", *(("", "at") if positions else ())]
    nodes = [
        helper.make_node("EmbedLayerNormalization", names, ["e", "", "total"], domain=MS, epsilon=0.01),
        helper.make_node("Add", ["x", "e"], ["y"]), helper.make_node("Add", ["x", "total"], ["z"]),
    ]  # fmt: skip
    constants = {name: each for name, each in held.items() if name in names}
    onnx.save(network(nodes, (1, 3, 6), constants, "y z", com_microsoft=1), tmp_path / "m.onnx")
    x = values(1, 3, 6)
    expected = session(tmp_path / "m.onnx").run(["y", "z"], {"x": x})
    found = graph_session(load(tmp_path / "m.onnx"), ["y", "z"]).run(["y", "z"], {"x": x})
    for exact, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, exact, rtol=2e-4, atol=2e-5)
