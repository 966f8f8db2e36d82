"""Models of opsets before 7, as programs: what they mean is what onnxruntime makes of them as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc.api import compile as compiled
from npuc.frontend.upgrading import upgraded
from npuc.regions.artefact import is_composite
from npuc.target import Options
from tests.compiled import checked, program_of
from tests.onnx_models import parse

NODES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Add": ({"broadcast": 1}, (1,)),
    "PRelu": ({}, (8,)),
    "BatchNormalization": ({"is_test": 1, "epsilon": 1e-5}, (8,)),
}


def _old(op: str) -> onnx.ModelProto:
    """A convolution and an operator whose form was another before opset 7; constants are inputs as well."""
    attributes, shape = NODES[op]
    random = np.random.default_rng(5)
    constants = {"w": random.normal(0.05, 0.2, (8, 4, 3, 3)).astype(np.float32)}
    count = 4 if op == "BatchNormalization" else 1
    constants |= {f"c{at}": random.uniform(0.3, 1.5, shape).astype(np.float32) for at in range(count)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node(op, ["a", *[name for name in constants if name != "w"]], ["y"], **attributes),
    ]
    port = helper.make_tensor_value_info
    inputs = [port("x", TensorProto.FLOAT, [1, 4, 6, 6])]
    inputs += [port(name, TensorProto.FLOAT, each.shape) for name, each in constants.items()]
    initialisers = [numpy_helper.from_array(each, name) for name, each in constants.items()]
    graph = helper.make_graph(nodes, "old", inputs, [port("y", TensorProto.FLOAT, [1, 8, 6, 6])], initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)


@pytest.mark.parametrize("target", ["easynpu", "nvdla-large", "bm1684"])
@pytest.mark.parametrize("op", NODES)
def test_an_old_model_runs_on_the_npu_as_onnxruntime_runs_it(op: str, target: str, tmp_path: Path) -> None:
    program = program_of(_old(op), tmp_path, target)
    assert not is_composite(program)
    found = checked(program, tmp_path)
    assert found["status"] == "ok"
    assert program.manifest["report"]["macs"] == 8 * 36 * 4 * 9


def test_a_slope_that_two_nodes_read_or_that_is_computed_stays_as_it_is() -> None:
    model = _old("PRelu")
    model.graph.node.append(helper.make_node("Neg", ["c0"], ["unused"]))
    assert upgraded(model).opset_import[0].version == 6
    del model.graph.node[-1]
    assert upgraded(model).opset_import[0].version == 7
    slope = next(each for each in upgraded(model).graph.initializer if each.name == "c0")
    assert list(slope.dims) == [8, 1, 1]


def test_an_operand_that_is_broadcast_from_an_axis_on_is_left_to_nobodys_guess() -> None:
    """ONNX's converter makes (8, 1, 1, 1) of (8,) at axis 1, which adds along the batch."""
    model = _old("Add")
    model.graph.node[1].attribute.append(helper.make_attribute("axis", 1))
    assert upgraded(model) is model


def test_newer_models_and_those_with_operators_of_other_domains_are_left() -> None:
    model = _old("Add")
    model.opset_import.append(helper.make_opsetid("demo", 1))
    assert upgraded(model) is model
    new = helper.make_model(model.graph, opset_imports=[helper.make_opsetid("", 7)])
    assert upgraded(new) is new


def test_multiplications_that_rewrites_add_do_not_count_as_use(tmp_path: Path) -> None:
    """Two groups of 4 x 4 channels: 36 pixels x 8 channels x 4 x 9 multiplications, whatever runs them."""
    w = numpy_helper.from_array(np.random.default_rng(1).normal(0.1, 0.3, (8, 4, 3, 3)).astype(np.float32), "w")
    model = parse("g (float[1,8,6,6] x) => (float[1,8,6,6] y) { y = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w) }")
    model.graph.initializer.append(w)
    for target in ("easynpu", "nvdla-small", "bm1684"):
        report = compiled(model, target, options=Options(precision="fp32") if target == "bm1684" else None)
        found = report.report
        assert found["macs"] == 36 * 8 * 4 * 9
        layers = sum(each["ideal_cycles"] for each in found["layers"])
        assert found["executed_macs"] >= found["macs"]
        assert found["ideal_cycles"] == pytest.approx(layers * found["macs"] / found["executed_macs"])
        assert found["utilization"] == pytest.approx(found["ideal_cycles"] / found["cycles"])
