"""Programs with their host steps as one network: the same bits as step by step; else there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc import running
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.models import MODELS
from npuc.program import Port, Program, as_loaded
from npuc.samples.loading import varied
from npuc.target import Options, Request, target
from npuc.targets.easynpu.program.artefact import Contents
from npuc.targets.easynpu.simulate.program_network import ProgramNetwork, program_network
from npuc.targets.easynpu.simulate.running import QuickRunner, Runner
from tests.compiled import compilation

NAMES = ("digits", "resnet8", "ds_cnn", "autoencoder", "unet_small", "residual_awkward")


def _program(model: onnx.ModelProto, folder: Path) -> Program:
    onnx.save(model, folder / "m.onnx")
    return as_loaded(compilation(Request(folder / "m.onnx", target("easynpu"), Options(level="0"))).program)


def _opened(program: Program) -> ProgramNetwork | None:
    contents = Contents.of(program.manifest)
    return program_network(contents.steps, program.files, contents.machine, program.inputs, program.outputs)


def _small(x: str, *nodes: onnx.NodeProto, output: str = "y") -> onnx.ModelProto:
    """A convolution of x, 1 x 4 x 6 x 6, whose result c further nodes read."""
    values = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    conv = helper.make_node("Conv", [x, "w"], ["c"])
    given = helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 4, 6, 6])
    wanted = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    graph = helper.make_graph([conv, *nodes], "g", [given], [wanted], [numpy_helper.from_array(values, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _extreme(program: Program) -> dict[str, Array]:
    """Samples with ties of the quantisation, values beyond its range, and infinite ones."""
    samples = dict(varied(running.program_inputs(program)).inputs)
    steps = [each for each in Contents.of(program.manifest).steps if isinstance(each, HostStep)]
    scales = [each.attrs["scale"] for each in steps if each.op == "QuantizeLinear"]
    for name, values in samples.items():
        halves = np.float32(scales[0]) * (np.arange(values[0].size, dtype=np.float32) - values[0].size // 2 + 0.5)
        more = [
            halves.reshape(values.shape[1:]),
            *(np.full_like(values[0], each) for each in (np.inf, -np.inf, 1e30)),
        ]
        samples[name] = np.concatenate([values, np.stack(more)])
    count = min(map(len, samples.values()))
    return {name: values[:count] for name, values in samples.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_the_same_bits_as_step_by_step(name: str, tmp_path: Path) -> None:
    program = _program(MODELS[name](), tmp_path)
    run, feeds = _opened(program), _extreme(program)
    assert run is not None and run.takes(feeds)
    for output, values in Runner(program)(feeds).items():
        np.testing.assert_array_equal(run(feeds)[output], values)
        np.testing.assert_array_equal(run({name: each[1:2] for name, each in feeds.items()})[output], values[1:2])


@pytest.mark.parametrize("name", ["t0", "c0", "x0", "y0"])
def test_a_models_names_are_not_those_of_the_networks_tensors(name: str, tmp_path: Path) -> None:
    for x, y in ((name, "out"), ("in", name)):
        program = _program(_small(x, helper.make_node("Relu", ["c"], [y]), output=y), tmp_path)
        run, feeds = _opened(program), varied(running.program_inputs(program)).inputs
        assert run is not None
        np.testing.assert_array_equal(run(feeds)[y], Runner(program)(feeds)[y])


def test_a_softmax_of_the_last_axis_is_part_of_the_network_and_of_another_is_not(tmp_path: Path) -> None:
    for axis, found in ((-1, True), (1, False)):
        program = _program(_small("x", helper.make_node("Softmax", ["c"], ["y"], axis=axis)), tmp_path)
        run, quick, feeds = _opened(program), QuickRunner(program), varied(running.program_inputs(program)).inputs
        assert (run is not None) == found
        quick(feeds)
        np.testing.assert_array_equal(quick(feeds)["y"], Runner(program)(feeds)["y"])


def test_inputs_of_another_shape_are_left_to_the_host_steps(tmp_path: Path) -> None:
    program = _program(_small("x", helper.make_node("Relu", ["c"], ["y"])), tmp_path)
    run, feeds = _opened(program), varied(running.program_inputs(program)).inputs
    assert run is not None and run.takes(feeds)
    assert not run.takes({"x": feeds["x"].reshape(len(feeds["x"]), 4, 6, 6)})
    assert not run.takes({"x": feeds["x"][..., 1:]})


@pytest.mark.parametrize("wrong", [np.nan, None])
def test_nan_and_other_types_are_left_to_the_host_steps(wrong: float | None, tmp_path: Path) -> None:
    program = _program(_small("x", helper.make_node("Relu", ["c"], ["y"])), tmp_path)
    feeds = dict(varied(running.program_inputs(program)).inputs)
    if wrong is None:
        feeds["x"] = feeds["x"].astype(np.float64)
    else:
        feeds["x"] = feeds["x"].copy()
        feeds["x"][1, 0, 0, 2, 3] = wrong
    run, quick = _opened(program), QuickRunner(program)
    assert run is not None and not run.takes(feeds) and not run.takes({})
    quick(feeds)
    np.testing.assert_array_equal(quick(feeds)["y"], Runner(program)(feeds)["y"])


def _changed(step: Any, op: str, **attrs: Any) -> Any:
    return replace(step, attrs={**step.attrs, **attrs}) if isinstance(step, HostStep) and step.op == op else step


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("QuantizeLinear", {"scale": -1.0}),
        ("QuantizeLinear", {"scale": "?"}),
        ("QuantizeLinear", {"zero_point": 300}),
        ("QuantizeLinear", {"dtype": "int16"}),
        ("DequantizeLinear", {"zero_point": -129}),
        ("Reshape", {"shape": [3]}),
    ],
)
def test_steps_that_contradict_themselves_make_no_network(op: str, attrs: dict[str, Any], tmp_path: Path) -> None:
    program = _program(MODELS["digits"](), tmp_path)
    contents = Contents.of(program.manifest)
    steps = [_changed(step, op, **attrs) for step in contents.steps]
    assert steps != list(contents.steps)
    assert program_network(steps, program.files, contents.machine, program.inputs, program.outputs) is None


def test_ports_that_the_steps_do_not_give_make_no_network(tmp_path: Path) -> None:
    program = _program(MODELS["digits"](), tmp_path)
    contents = Contents.of(program.manifest)
    (output,) = program.outputs
    for wrong in (Port("other", output.shape, "float32"), Port(output.name, (*output.shape, 1), "float32")):
        assert program_network(contents.steps, program.files, contents.machine, program.inputs, [wrong]) is None
    doubled = [Port(each.name, each.shape, "float64") for each in program.inputs]
    assert program_network(contents.steps, program.files, contents.machine, doubled, program.outputs) is None
