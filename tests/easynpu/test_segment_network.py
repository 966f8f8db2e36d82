"""Segments as one network: the same bits as word by word, in integers and in float32; else it is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
from npuc.program import Program, as_loaded
from npuc.reference import integers_are_exact
from npuc.samples.loading import varied
from npuc.target import Options, Request, target
from npuc.targets.easynpu.machine.isa import words_to_bytes
from npuc.targets.easynpu.machine.listing import assemble
from npuc.targets.easynpu.machine.memory import Place
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import Contents, ImageLoad, Segment, TensorMove
from npuc.targets.easynpu.simulate.network import FINEST, FINEST_POSITIVE, Network
from npuc.targets.easynpu.simulate.origins import Value
from npuc.targets.easynpu.simulate.running import QuickRunner, Runner
from npuc.targets.easynpu.simulate.segment_network import SegmentNetwork, segment_network
from tests.compiled import compilation

NAMES = ("digits", "lenet", "resnet8", "ds_cnn", "small_cnn", "unet_small", "residual_awkward", "autoencoder")
RAISED = 128


def _compiled(name: str, machine: str | None, folder: Path) -> Program:
    path = folder / f"{name}.onnx"
    onnx.save(MODELS[name](), path)
    program = compilation(Request(path, target("easynpu"), Options(machine=machine, level="0"))).program
    return as_loaded(program)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str | None], Program]:
    """The program of a network on a machine."""

    @cache
    def found(name: str, machine: str | None) -> Program:
        return _compiled(name, machine, tmp_path_factory.mktemp(name))

    return found


def _networks(program: Program, *, quantised: bool) -> list[HostStep | SegmentNetwork | None]:
    """Host steps, and all segments between two of them as one."""
    contents = Contents.of(program.manifest)
    wanted = {each.name for each in program.outputs}
    wanted |= {name for step in contents.steps if isinstance(step, HostStep) for name in step.inputs}
    found: list[HostStep | SegmentNetwork | None] = []
    segments: list[Segment] = []
    for step in (*contents.steps, None):
        if isinstance(step, Segment):
            segments.append(step)
            continue
        if segments:
            found.append(segment_network(segments, program.files, contents.machine, wanted, quantised=quantised))
            segments = []
        if step is not None:
            found.append(step)
    return found


@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("machine", [None, "large"])
@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_the_same_bits_as_one_network_as_word_by_word(
    name: str, machine: str | None, quantised: bool, compiled: Callable[[str, str | None], Program]
) -> None:
    program = compiled(name, machine)
    samples = varied(running.program_inputs(program), 4).inputs
    tensors: dict[str, Array] = dict(samples)
    for part in _networks(program, quantised=quantised):
        assert part is not None
        part.run(tensors)
    for output, values in Runner(program)(samples).items():
        np.testing.assert_array_equal(tensors[output], values)


def test_psums_that_are_kept_over_channels_are_one_convolution_beyond_24_bits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    w = numpy_helper.from_array(random.choice([-1.0, 0.98, 1.0], (16, 2048, 1, 1)).astype(np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2048, 4, 4])
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [w])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx"
    )
    (tmp_path / "m.toml").write_text("weight_words = 900\n", encoding="utf-8")
    options = Options(machine=str(tmp_path / "m.toml"), level="0")
    program = as_loaded(compilation(Request(tmp_path / "m.onnx", target("easynpu"), options)).program)
    assert any("keep_psum" in str(each) for each in target("easynpu").listing(program))
    samples = varied(running.program_inputs(program)).inputs
    tensors: dict[str, Array] = dict(samples)
    for part in _networks(program, quantised=True):
        assert part is not None
        part.run(tensors)
    for output, values in Runner(program)(samples).items():
        np.testing.assert_array_equal(tensors[output], values)
    assert None in _networks(program, quantised=False)


def test_a_runner_takes_the_network_from_the_second_sample_on_and_words_to_be_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _compiled("digits", None, tmp_path)
    samples = varied(running.program_inputs(program)).inputs
    one = {name: values[:1] for name, values in samples.items()}
    runs: list[int] = []
    run = SegmentNetwork.run

    def counted(self: SegmentNetwork, tensors: dict[str, Array]) -> None:
        runs.append(1)
        run(self, tensors)

    monkeypatch.setattr(SegmentNetwork, "run", counted)
    monkeypatch.setattr(
        QuickRunner, "_program_network", None
    )  # a program whose host steps are not part of the network
    quick, words = QuickRunner(program), Runner(program)
    seen: dict[str, Array] = {}
    for feeds, observe, networks in ((one, None, 0), (one, None, 1), (samples, None, 2), (samples, seen, 2)):
        found = quick(feeds, None if observe is None else observe.__setitem__)
        assert len(runs) == networks
        for name, values in words(feeds).items():
            np.testing.assert_array_equal(found[name], values)
    assert seen


def test_results_are_the_same_after_a_sample_alone_where_weights_were_loaded_in_between(tmp_path: Path) -> None:
    machine = tmp_path / "little.toml"
    machine.write_text("weight_words = 900\n", encoding="utf-8")
    program = _compiled("lenet", str(machine), tmp_path)
    assert sum(isinstance(each, Segment) for each in Contents.of(program.manifest).steps) > 1
    samples = varied(running.program_inputs(program)).inputs
    run = Runner(program)
    run({name: values[:1] for name, values in samples.items()})
    again, expected = run(samples), Runner(program)(samples)
    for name, values in expected.items():
        np.testing.assert_array_equal(again[name], values)


def _opened(build: Any, *inputs: tuple[str, tuple[int, int, int]]) -> Any:
    """A session of a network with one output y."""
    network = Network(quantised=True)
    values = [network.given(name, *extents) for name, extents in inputs]
    network.gives("y", build(network, *values))
    return network.session()


FINE = [*((shift, False) for shift in range(1 - FINEST)), *((shift, True) for shift in range(1 - FINEST_POSITIVE))]


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize(("shift", "relu"), FINE)
def test_sums_are_rounded_half_up_beside_every_half(shift: int, relu: bool, terms: int) -> None:
    halves = np.arange(-140, 140)[:, None] * (1 << shift) + ((1 << shift) >> 1)
    bias = np.concatenate([(halves + np.arange(-2, 3)).ravel(), [1 << 24, (1 << 24) + 1, -(1 << 24) - 1, 1 << 30]])
    x = np.array([-128, -1, 0, 1, 127])
    weights, scale = np.ones((len(bias), 1, 1, 1), np.int8), np.full(len(bias), -shift, np.int8)

    def build(network: Network, value: Value) -> Value:
        if terms == 1:
            name = network.convolution(value, weights, bias, scale, {}, relu=relu)
        else:
            products = ((value, weights, {}), (value, np.zeros_like(weights), {}))
            name = network.rounded(network.sums(products, bias), scale, 0 if relu else -RAISED)
        return network.value(name, len(bias), 1, len(x), raised=terms == 1)

    feeds = {"x": (x + RAISED).astype(np.uint8).reshape(1, 1, 1, -1)}
    (found,) = _opened(build, ("x", (1, 1, len(x)))).run(None, feeds)
    for channel, each in enumerate(bias.tolist()):
        for column, value in enumerate(x.tolist()):
            acc = value + each
            wanted = min(max((2 * acc + (1 << shift)) // (2 << shift) if shift else acc, -128), 127)
            got = int(found[0, channel, 0, column]) - RAISED
            assert max(got, 0) == max(wanted, 0)
            assert relu or got == wanted


@pytest.mark.parametrize("shift", range(9))
def test_every_sum_of_two_maps_is_rounded_half_up(shift: int) -> None:
    x, y = np.divmod(np.arange(1 << 16).reshape(1, 1, 256, 256), 256)

    def build(network: Network, first: Value, second: Value) -> Value:
        return network.value(network.sum(first, second, shift), 1, 256, 256, raised=True)

    session = _opened(build, ("x", (1, 256, 256)), ("z", (1, 256, 256)))
    (found,) = session.run(None, {"x": x.astype(np.uint8), "z": y.astype(np.uint8)})
    acc = x + y - 2 * RAISED
    wanted = np.clip((2 * acc + (1 << shift)) // (2 << shift) if shift else acc, -128, 127)
    np.testing.assert_array_equal(found.astype(np.int64) - RAISED, wanted)


def _relu(base: int) -> Segment:
    """Words that read a map of 2 x 2 pixels at an address, where the host puts one at 0."""
    image = ImageLoad("itcm", 0, "itcm.bin", 0, 3)
    load = TensorMove("x", (1, 16, 2, 2), Place("fmap", 0, 2, 1, 1), 16, 2, 2)
    store = TensorMove("y", (1, 16, 2, 2), Place("fmap", 100, 2, 1, 1), 16, 2, 2)
    return Segment((image,), (load,), 3, (store,))


@pytest.mark.parametrize("base", [0, 1, 90])
def test_words_that_no_map_was_written_to_make_no_network(base: int) -> None:
    lines = (
        f"src base={base} row=2 pixel=1 group=1",
        "dst base=100 row=2 pixel=1 group=1",
        "relu Ho=2 Wo=2 Co=16 Ci=16 Hi=2 Wi=2",
    )
    words = [each for line in lines if (each := assemble(line)) is not None]
    files = {"itcm.bin": words_to_bytes(words)}
    found = segment_network([_relu(base)], files, Machine(), {"y"})
    if base:
        assert found is None
        return
    assert found is not None
    tensors = {"x": np.arange(-32, 32, dtype=np.int8).reshape(1, 1, 16, 2, 2)}
    assert found.takes(tensors)
    assert not found.takes({}) and not found.takes({"x": np.zeros((1, 4), np.int8)})
    found.run(tensors)
    np.testing.assert_array_equal(tensors["y"], np.maximum(tensors["x"], 0))


def test_this_processor_is_asked_whether_integers_are_exact() -> None:
    assert integers_are_exact()
    assert isinstance(integers_are_exact(precise=False), bool)
