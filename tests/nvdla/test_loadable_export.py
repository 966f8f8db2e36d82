"""Programs as loadables: what the stock firmware makes of them computes the same, and every rule is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import npuc as api
from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.program import Program
from npuc.target import target
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla.emission.describing import Described
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.loadable import emulation, engine_tasks, read_task, schema
from npuc.targets.nvdla.loadable.accesses import Accesses
from npuc.targets.nvdla.loadable.averages import replace_averages
from npuc.targets.nvdla.loadable.composing import graph
from npuc.targets.nvdla.loadable.export import run
from npuc.targets.nvdla.loadable.listing import machine_of
from npuc.targets.nvdla.loadable.rules import RULES, broken_rules
from npuc.targets.nvdla.machine import parameters as machines
from npuc.targets.nvdla.model.memory import Pattern
from npuc.targets.nvdla.program.artefact import Contents
from npuc.targets.nvdla.selection import Constants
from tests.given import GIVEN
from tests.images.making import SIZE, photos
from tests.images.making import network as pictured
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights

TARGETS = ("nvdla-small", "nvdla-large", "nvdla-full")
MODELS = Path(__file__).resolve().parents[2] / "models"


def of_file(path: Path, folder: Path, name: str) -> tuple[Program, schema.Loadable]:
    """The program of a model file and its loadable, which the export has compared with it."""
    if not path.is_file():
        pytest.skip(f"no {path.name} beside the project")
    return of_model(onnx.load(path), folder, name)


def of_model(model: onnx.ModelProto, folder: Path, name: str) -> tuple[Program, schema.Loadable]:
    _, _, program = compiled(model, folder, name)
    return program, loadables.read(target(name).export(program, "loadable")["network.nvdla"])


@pytest.mark.parametrize(
    ("model", "name"),
    [("tiny_resnet8_fp32", "nvdla-small"), ("tiny_resnet8_fp32", "nvdla-full"), ("mnist_cnn", "nvdla-large")],
)
def test_a_network_is_exported_and_keeps_every_rule(model: str, name: str, tmp_path: Path) -> None:
    _, loadable = of_file(GIVEN / "models" / f"{model}.onnx", tmp_path, name)
    assert list(broken_rules(loadable, machines.load(name))) == []


@pytest.mark.parametrize("name", TARGETS)
def test_the_outputs_of_the_firmware_are_those_of_the_program(name: str, tmp_path: Path) -> None:
    program, loadable = of_file(MODELS / "digits.onnx", tmp_path, name)
    machine = machines.load(name)
    pixels = np.random.default_rng(3).integers(-128, 128, (8, 8)).astype(np.int8)
    (tensor,) = (each for each in loadable.tensor_desc_list if each.id == 0)
    step = tensor.stride_1 // 8 if tensor.data_category else 1  # atoms of a cube, or the bytes of an image
    image = np.zeros((8, tensor.stride_1), np.int8)
    image[:, : 8 * step : step] = pixels
    after = run(loadable, machine, {tensor.name: image.tobytes()})
    found = np.frombuffer(after.output(loadable.tensor_desc_list[1].name), np.int8)[:10]
    scale = next(step for step in program.manifest["steps"] if step.get("op") == "QuantizeLinear")["attrs"][
        "scale"
    ]
    feeds = {program.inputs[0].name: pixels.reshape(1, *program.inputs[0].shape).astype(np.float32) * scale}
    wanted = next(iter(target(name).runner(program)(feeds).values())).ravel()
    out = next(step for step in program.manifest["steps"] if step.get("op") == "DequantizeLinear")["attrs"][
        "scale"
    ]
    np.testing.assert_array_equal(found * np.float32(out), wanted)


@pytest.mark.parametrize("name", TARGETS)
def test_a_loadable_takes_the_bytes_of_a_grey_photo(name: str, tmp_path: Path) -> None:
    # for a caller that fills the buffer: T_R8 (0), the photo's extents, lines from line stride to line stride
    program = api.compile(
        pictured(tmp_path, (1, 1, SIZE, SIZE)),
        name,
        calibration=photos(tmp_path),
        input={"order": "gray", "std": 64.0},
    ).program
    loadable = loadables.read(target(name).export(program, "loadable")["network.nvdla"])
    tensor, out = loadable.tensor_desc_list
    assert (tensor.pixel_format, tensor.data_type, tensor.c, tensor.h, tensor.w) == (0, 5, 1, SIZE, SIZE)
    frame = np.random.default_rng(3).integers(0, 256, (SIZE, SIZE)).astype(np.uint8)
    image = np.zeros((SIZE, tensor.stride_1), np.uint8)
    image[:, :SIZE] = frame
    assert image.size == tensor.size
    after = run(loadable, machines.load(name), {tensor.name: image.tobytes()})
    scale = next(step for step in program.manifest["steps"] if step.get("op") == "DequantizeLinear")["attrs"][
        "scale"
    ]
    found = np.frombuffer(after.output(out.name), np.int8)[:4] * np.float32(scale)
    feeds = {"x": frame.reshape(1, *program.inputs[0].shape)}
    np.testing.assert_array_equal(found, target(name).runner(program)(feeds)["y"].ravel())


def of_stock_runtime(photo: Array, tensor: schema.TensorDesc, mean: Sequence[float], normalise: int) -> bytes:
    """What nvdla_runtime --image photo.jpg --mean .. --normalize .. makes of (H, W, 3) RGB in an input's buffer.

    Its JPEGs are B, G, R. It knows T_R8 (0), T_A16B16G16R16_F (8), T_A8B8G8R8 (12) and features; int8 (4), as
    which it stores 0..127, and fp16 (2); of others, uint8 included, it copies nothing.
    """
    half = tensor.data_type == 2
    assert (tensor.pixel_format, tensor.data_type) in ((8, 2), (12, 4))
    assert (tensor.h, tensor.w) == photo.shape[:2]
    buffer, each = np.zeros(tensor.size, np.uint8), 2 if half else 1
    for (y, x, z), value in np.ndenumerate(photo[..., ::-1]):
        made = np.float16((float(value) - mean[z]) / normalise) if half else np.int8(int(value) * 127 / 255 + 0.5)
        at = y * tensor.stride_1 + x * 4 * each + z * each
        buffer[at : at + each] = np.frombuffer(made.tobytes(), np.uint8)
    return buffer.tobytes()


@pytest.mark.parametrize(("name", "precision"), [(each, "int8") for each in TARGETS] + [("nvdla-full", "fp16")])
def test_the_stock_runtime_fills_the_input_with_a_colour_photo(name: str, precision: str, tmp_path: Path) -> None:
    half = precision == "fp16"
    mean, std = ([103.0, 117.0, 123.5], 64) if half else ([0.0] * 3, 255)
    program = api.compile(
        pictured(tmp_path, (1, 3, SIZE, SIZE)),
        name,
        precision=precision,
        calibration=photos(tmp_path),
        weights="one-plane",
        input={"order": "bgr", "mean": mean, "std": std, "frame": "float"},
        **({} if half else {"scales_in": {"x": {"scale": 1 / 127}}}),
    ).program
    loadable = loadables.read(target(name).export(program, "loadable")["network.nvdla"])
    assert list(broken_rules(loadable, machines.load(name))) == []
    tensor, out = loadable.tensor_desc_list
    photo = np.random.default_rng(3).integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)
    after = run(loadable, machines.load(name), {tensor.name: of_stock_runtime(photo, tensor, mean, std)})
    found = np.frombuffer(after.output(out.name), np.float16 if half else np.int8)[:4].astype(np.float32)
    if not half:
        steps = program.manifest["steps"]
        found *= np.float32(next(s for s in steps if s.get("op") == "DequantizeLinear")["attrs"]["scale"])
    x = ((photo[..., ::-1].astype(np.float32) - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1)
    np.testing.assert_array_equal(found, target(name).runner(program)({"x": x[None, None]})["y"].ravel())


def test_rules_have_names_and_say_what_they_demand() -> None:
    assert len(RULES) == len(set(RULES)) > 30


@pytest.mark.parametrize(
    "file", sorted((GIVEN / "nvdla" / "loadables").glob("*.nvdla")), ids=lambda each: each.stem
)
def test_loadables_of_nvidias_compiler_keep_every_rule(file: Path) -> None:
    loadable = loadables.read(file.read_bytes())
    assert list(broken_rules(loadable, machine_of(loadable))) == []


def small_network(extent: int = 8) -> onnx.ModelProto:
    """A convolution with a residual sum, an average, and softmax.

    Of 8 x 8 pixels the average has the firmware's own reciprocals; of 4 x 4 it changes the scale.
    """
    constants = {"w": weights(8, 3, 3, 3), "v": weights(8, 8, 3, 3), "b": np.ones(8, np.float32)}
    nodes = [
        node("Conv", "x w b", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "r"),
        node("Conv", "r v", "c", pads=[1, 1, 1, 1]),
        node("Add", "c r", "s"),
        node("AveragePool", "s", "m", kernel_shape=[extent, extent]),
        node("Softmax", "m", "y", axis=1),
    ]
    return network(nodes, (1, 3, extent, extent), constants)


def broken_by(loadable: schema.Loadable, name: str) -> set[str]:
    return {rule for rule, _ in broken_rules(loadable, machines.load(name))}


def test_each_kind_of_damage_breaks_a_rule(tmp_path: Path) -> None:
    _, loadable = of_model(small_network(), tmp_path, "nvdla-small")

    def with_blob(number: int, data: bytes) -> schema.Loadable:
        blobs = list(loadable.blobs)
        blobs[number] = replace(blobs[number], data=data)
        return replace(loadable, blobs=tuple(blobs))

    kinds = {each.sub_interface: at for at, each in enumerate(loadable.blobs) if each.interface == schema.DLA}
    graph = bytearray(loadable.blobs[kinds[schema.DEPENDENCIES]].data)
    graph[4] += 1
    assert any("count" in rule for rule in broken_by(with_blob(kinds[2], bytes(graph)), "nvdla-small"))
    memories = (loadable.memory_list[0], replace(loadable.memory_list[1], alignment=64), *loadable.memory_list[2:])
    assert any("4,096" in rule for rule in broken_by(replace(loadable, memory_list=memories), "nvdla-small"))
    assert broken_by(replace(loadable, version=(0, 6, 0)), "nvdla-small")
    assert broken_by(replace(loadable, submit_list=()), "nvdla-small")
    unnamed = tuple(replace(each, name=each.name.replace("dep_graph", "deps")) for each in loadable.blobs)
    contents = tuple(
        replace(each, contents=tuple(name.replace("dep_graph", "deps") for name in each.contents))
        for each in loadable.memory_list
    )
    renamed = replace(loadable, blobs=unnamed, memory_list=contents)
    assert any('"dep_graph"' in rule for rule in broken_by(renamed, "nvdla-small"))


def test_an_operation_that_does_not_wait_for_its_input_breaks_a_rule(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Conv", "a w", "y")]
    _, loadable = of_model(network(nodes, (1, 3, 1, 8), {"w": weights(3, 3, 1, 2)}), tmp_path, "nvdla-small")
    (entry,) = engine_tasks(loadable)
    common = read_task(loadable, entry).common
    giver = next(each for each in common if each.engine == of.SDP and each.conv.event == of.COMPLETED
                 and each.conv.index != of.NONE)  # fmt: skip
    at = next(at for at, each in enumerate(loadable.blobs) if "dep_graph" in each.name)
    data = bytearray(loadable.blobs[at].data)
    data[giver.index * 36 + 8 + 4 + 2] = of.PROGRAMMED
    blobs = (*loadable.blobs[:at], replace(loadable.blobs[at], data=bytes(data)), *loadable.blobs[at + 1 :])
    assert any("reads only what" in rule for rule in broken_by(replace(loadable, blobs=blobs), "nvdla-small"))


@pytest.mark.parametrize("name", TARGETS)
def test_an_average_that_changes_the_scale_becomes_convolutions(name: str, tmp_path: Path) -> None:
    program, loadable = of_model(small_network(4), tmp_path, name)
    assert any("PDP.D_OP_ENABLE" in each["text"] for each in target(name).listing(program))
    (entry,) = engine_tasks(loadable)
    assert all(each.engine != of.PDP for each in read_task(loadable, entry).common)


def test_softmax_is_a_task_of_the_cpu_with_the_scales_of_the_network(tmp_path: Path) -> None:
    program, loadable = of_model(small_network(), tmp_path, "nvdla-small")
    engine, cpu = loadable.task_list
    assert (engine.interface, cpu.interface) == (schema.DLA, schema.EMU)
    tensors = json.loads(target("nvdla-small").export(program, "loadable")["tensors.json"])
    assert tensors["outputs"][0]["scale"] == pytest.approx(1 / 127)
    after = run(loadable, machines.load("nvdla-small"), {"x": bytes(loadable.tensor_desc_list[0].size)})
    found = np.frombuffer(after.output("y"), np.int8)[:8]
    feeds = {"x": np.zeros((1, 1, 3, 8, 8), np.float32)}
    wanted = target("nvdla-small").runner(program)(feeds)["y"].ravel()
    np.testing.assert_allclose(found / 127, wanted, atol=1.5 / 127)


def test_the_cpus_softmax_takes_and_gives_scaled_integers() -> None:
    """exp(0) and exp(-1) by hand: 0.731 and 0.269 of the sum, in steps of 1/100."""
    operation = emulation.EmulatedOperation(input_scale=0.5, output_scale=0.01)
    found = emulation.softmax(operation, np.array([2, 0], np.int8))
    assert found.tolist() == [73, 26]


def engines(program: Program) -> list[Described]:
    """What the engines do in the program's only segment."""
    contents = Contents.of(program.manifest)
    (segment,) = contents.segments
    return contents.engines(program, segment)


def test_the_artefact_keeps_what_the_engines_do(tmp_path: Path) -> None:
    _, _, program = compiled(small_network(), tmp_path, "nvdla-full")
    assert [each.engine for each in engines(program)] == [of.CONV, of.SDP, of.CONV, of.SDP, of.PDP]


@pytest.mark.parametrize(
    ("name", "value"),
    [("engine", 7), ("lut", 5), ("op", {"mode": 300}), ("op", {"x": 1}), ("surfaces", {"source": 1}), ("op", 9)],
)
def test_an_engine_that_npuc_cannot_have_written_is_damaged(name: str, value: object, tmp_path: Path) -> None:
    _, _, program = compiled(small_network(), tmp_path)
    (first, *others), *rest = program.manifest["engines"]
    for entries in (9, [], [[{**first, name: value}, *others], *rest]):
        damaged = replace(program, manifest={**program.manifest, "engines": entries})
        with pytest.raises(ArtefactError) as caught:
            target("nvdla-small").export(damaged, "loadable")
        assert caught.value.problems[0].code == "E502"


def test_a_host_step_inside_the_network_is_refused_by_name(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Tanh", "a", "t"), node("Conv", "t w", "y")]
    _, _, program = compiled(network(nodes, (1, 3, 8, 8), {"w": weights(3, 3, 1, 1)}), tmp_path)
    with pytest.raises(ArtefactError, match="Tanh") as caught:
        target("nvdla-small").export(program, "loadable")
    assert caught.value.problems[0].code == "E506"


def test_a_table_function_is_exported_with_its_table(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Tanh", "a", "t"), node("Conv", "t w", "c"), node("Sigmoid", "c", "y")]
    _, loadable = of_model(network(nodes, (1, 3, 8, 8), {"w": weights(3, 3, 1, 1)}), tmp_path, "nvdla-full")
    (entry,) = engine_tasks(loadable)
    assert read_task(loadable, entry).network.lut_count == 2
    assert list(broken_rules(loadable, machines.load("nvdla-full"))) == []


def test_the_same_program_gives_the_same_loadable(tmp_path: Path) -> None:
    _, _, program = compiled(small_network(), tmp_path, "nvdla-small")
    first, second = (target("nvdla-small").export(program, "loadable") for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", TARGETS)
def test_normalisation_is_exported_with_its_tables(name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("LRN", "a", "n", size=5, alpha=1.0), node("Conv", "n v", "y")]
    constants = {"w": weights(8, 3, 1, 1), "v": weights(4, 8, 1, 1)}
    _, loadable = of_model(network(nodes, (1, 3, 8, 8), constants), tmp_path, name)
    (entry,) = engine_tasks(loadable)
    engines = [each.engine for each in read_task(loadable, entry).common]
    tiles = engines.index(of.CDP)
    assert engines[:tiles] == [of.CONV, of.SDP] * (tiles // 2)
    assert engines[tiles + 1 :] == [of.CONV, of.SDP] * ((len(engines) - tiles) // 2)
    assert list(broken_rules(loadable, machines.load(name))) == []


@pytest.mark.parametrize("name", TARGETS)
def test_normalisation_beside_an_independent_convolution_is_exported(name: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("LRN", "a", "n", size=5, alpha=1.0),
        node("Conv", "x v", "b"),
        node("Add", "n b", "y"),
    ]
    constants = {"w": weights(8, 3, 1, 1), "v": weights(8, 3, 1, 1)}
    _, loadable = of_model(network(nodes, (1, 3, 16, 16), constants), tmp_path, name)
    assert list(broken_rules(loadable, machines.load(name))) == []


def test_an_operation_is_enabled_behind_the_one_before_it_on_its_engine() -> None:
    """Else the firmware, which believes that the group enabled last ends last, takes them in the wrong order."""
    convolution = Accesses(of.CONV, (Pattern(0, 64, 1, 64, 1, 64),), (), behind=False)
    results = [Accesses(of.SDP, (), (Pattern(at, 64, 1, 64, 1, 64),), behind=True) for at in (4096, 8192, 12288)]
    common = graph([each for result in results for each in (convolution, result)])
    events = [common[at].consumers[common[at].engine].event for at in range(4)]
    assert events == [of.ENABLED] * 4


def test_fp16_is_exported_with_averages_of_the_firmware(tmp_path: Path) -> None:
    _, _, program = compiled(small_network(), tmp_path, "nvdla-full", precision="fp16")
    loadable = loadables.read(target("nvdla-full").export(program, "loadable")["network.nvdla"])
    (entry,) = engine_tasks(loadable)
    assert of.PDP in {each.engine for each in read_task(loadable, entry).common}
    assert list(broken_rules(loadable, machines.load("nvdla-full"))) == []
    assert {each.data_type for each in loadable.tensor_desc_list} == {2}


def test_an_average_on_the_fly_lands_in_memory_before_it_becomes_convolutions(tmp_path: Path) -> None:
    _, _, program = compiled(small_network(4), tmp_path)
    machine = Contents.of(program.manifest).machine
    *others, sdp, pdp = engines(program)
    piped = replace(sdp.surfaces.result, type=of.HARDWARE, address=of.NONE, offset=0)
    flying = [
        replace(sdp, surfaces=replace(sdp.surfaces, result=piped)),
        replace(pdp, surfaces=replace(pdp.surfaces, source=piped), behind=True),
    ]
    found = replace_averages([*others, *flying], machine, Constants(machine, 0x9000_0000), 0xA000_0000)
    landed, convolution = found[len(others)], found[len(others) + 1]
    assert landed.surfaces.result.type == of.DRAM and landed.surfaces.result.offset == 0xA000_0000
    assert convolution.engine == of.CONV and convolution.surfaces.source.offset == 0xA000_0000


def test_given_zero_points_are_told_to_the_user(tmp_path: Path) -> None:
    """A quantised model: real = scale * (integer - zero point), as its own QuantizeLinear has it."""
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Conv", "d w", "a"),
        node("QuantizeLinear", "a t u", "p"),
        node("DequantizeLinear", "p t u", "y"),
    ]
    constants = {
        "s": np.array(0.05, np.float32), "z": np.array(-9, np.int8), "t": np.array(0.04, np.float32),
        "u": np.array(5, np.int8), "w": weights(8, 3, 1, 1),
    }  # fmt: skip
    _, _, program = compiled(network(nodes, (1, 3, 8, 8), constants), tmp_path)
    tensors = json.loads(target("nvdla-small").export(program, "loadable")["tensors.json"])
    assert [(each["scale"], each["zero_point"]) for each in tensors["inputs"]] == [(pytest.approx(0.05), -9)]
    assert [(each["scale"], each["zero_point"]) for each in tensors["outputs"]] == [(pytest.approx(0.04), 5)]
