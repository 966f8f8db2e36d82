"""Every pass, over many graphs: the meaning before is the meaning after, and twice is once."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npuc.frontend import import_model, load
from npuc.ir import CHECK, Array, Graph
from npuc.models import MODELS
from npuc.ops.interpreter import run
from npuc.passes import FLOAT_PASSES
from npuc.pipeline import run_passes
from tests.given import GIVEN
from tests.graphs.drawn import drawn
from tests.passes.networks import assert_close, assert_same_meaning, feeds, operators

SHARED = GIVEN / "models"
TRAINED = (
    *("mnist_cnn", "mtcnn_pnet", "ppocr_cls", "tiny_ad_ae_fp32", "tiny_kws_dscnn_fp32", "tiny_kws_int8qdq"),
    *("tiny_resnet8_fp32", "tiny_resnet8_int8qdq", "tiny_sww_int8", "tiny_vww_mbv1_fp32"),
)
BATCH_OF_ONE = {
    "tiny_kws_int8qdq": {"input_1": (1, 49, 10, 1)},
    "tiny_resnet8_int8qdq": {"input_1_int8": (1, 32, 32, 3)},
    "tiny_sww_int8": {"serving_default_input_1:0": (1, 30, 1, 40)},
}
RANDOM = (*range(33), 38, 40, 47, 61, 238)
"""Seeds; the last are the first in which some pass finds something."""


@cache
def _graph(name: str | int) -> Graph:
    if isinstance(name, int):
        return drawn(name)[0]
    if name in MODELS:
        return import_model(MODELS[name]())
    path = SHARED / f"{name}.onnx"
    if not path.is_file():
        pytest.skip("no folder `shared` with trained models beside the project")
    return load(path, BATCH_OF_ONE.get(name, {}), fold_weights=False)


@cache
def _values(name: str | int) -> dict[str, Array]:
    graph = _graph(name)
    if isinstance(name, int):
        return {**graph.constants, **drawn(name)[1].values[0]}
    return run(graph, feeds(graph), list(graph.tensors))


@cache
def _stages(name: str | int) -> list[Graph]:
    """The graph, and what each pass makes of what the passes before it made."""
    stages = [_graph(name)]
    for each in FLOAT_PASSES:
        stages.append(each(stages[-1]))
    return stages


@pytest.mark.parametrize("name", [*RANDOM, *MODELS, *TRAINED])
def test_every_pass_keeps_the_meaning_and_changes_nothing_more_the_second_time(name: str | int) -> None:
    """In its place among the passes and, on random networks, alone; of all passes the wrong ones are named."""
    graph, stages, wrong = _graph(name), _stages(name), list[str]()
    for once, before, after in zip(FLOAT_PASSES, stages, stages[1:], strict=False):
        alone = once(graph) if isinstance(name, int) else graph
        for found, from_graph in ((after, before), (alone, graph)):
            if found is from_graph:
                continue
            try:
                assert_same_meaning(graph, found, _values(name))
                assert once(found).nodes == found.nodes, "it changes its own result"
            except AssertionError as error:
                wrong.append(f"{once.__name__}: {error}")
    assert not wrong, "\n".join(wrong)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=1000))
def test_all_passes_together_keep_the_meaning(seed: int) -> None:
    graph, net = drawn(seed)
    assert_same_meaning(graph, run_passes(graph, FLOAT_PASSES), {**graph.constants, **net.values[0]})


@pytest.mark.parametrize("name", [*MODELS, *TRAINED])
def test_all_passes_together_change_nothing_more_the_second_time(name: str) -> None:
    assert run_passes(_stages(name)[-1], FLOAT_PASSES).nodes == _stages(name)[-1].nodes


@pytest.mark.parametrize("name", [*MODELS, *TRAINED])
def test_every_onnx_node_that_left_something_is_a_source_of_a_node(name: str) -> None:
    known = {source for node in _graph(name).nodes for source in node.sources}
    for node in _stages(name)[-1].nodes:
        assert known.issuperset(node.sources)
        assert len(set(node.sources)) == len(node.sources)


def test_every_pass_finds_something_in_the_random_networks() -> None:
    # these have tests of their own: rounding would turn the last bits, in which passes may differ, into whole
    # steps, no drawn graph spells a softmax, and what reads a mixture without padding takes it before
    idle = {each.__name__ for each in FLOAT_PASSES} - {
        "recognise_quantisation",
        "recognise_softmax",
        "fold_mixtures",
    }
    for seed in RANDOM:
        stages = _stages(seed)
        pairs = zip(FLOAT_PASSES, stages, stages[1:], strict=False)
        idle -= {each.__name__ for each, before, after in pairs if after is not before}
    assert not idle


@pytest.mark.parametrize(("name", "expected"), [
    ("resnet8", {"Conv": 5, "Conv+Relu": 4, "Add+Relu": 3, "GlobalAveragePool": 1, "Reshape": 1, "Gemm": 1}),
    ("autoencoder", {"Gemm": 1, "Gemm+Relu": 9}),
    ("ds_cnn", {"Conv+Relu": 9, "GlobalAveragePool": 1, "Reshape": 1, "Gemm": 1}),
    ("mobilenet_v1_025", {"Conv+Relu": 27, "GlobalAveragePool": 1, "Reshape": 1, "Gemm": 1}),
])  # fmt: skip
def test_a_network_becomes_its_layers(name: str, expected: dict[str, int]) -> None:
    found = operators(_stages(name)[-1])
    assert {op: found.count(op) for op in found} == expected


def test_the_result_equals_onnxruntime(onnxruntime_values: Any) -> None:
    for name in ("residual_awkward", "unet_small", "bc_resnet"):
        model = MODELS[name]()
        after = _stages(name)[-1]
        given_values = feeds(after)
        found = run(after, given_values)
        for output, value in onnxruntime_values(model, given_values).items():
            assert_close(value, found[output], output)


@pytest.mark.parametrize(("name", "seconds"), [("resnet8", 0.02), ("mobilenet_v1_025", 0.1)])
def test_the_passes_are_fast(name: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHECK)  # the suite has every graph checked fully, a user has not
    best = float("inf")
    for _ in range(3):
        started = process_time()
        run_passes(_graph(name), FLOAT_PASSES)
        best = min(best, process_time() - started)
    assert best < seconds


def test_importing_the_passes_imports_neither_onnx_nor_networkx() -> None:
    code = "import sys, npuc.passes; sys.exit(bool({'onnx', 'onnxruntime', 'networkx'} & set(sys.modules)))"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
