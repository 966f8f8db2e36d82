"""Programs of 8 bits: the model of the firmware's layers, what is quantised how, and whole networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from npuc import api
from npuc import program as programs
from npuc.errors import HOST_STEP
from npuc.ir import Array, Node
from npuc.models.builder import NetworkBuilder
from npuc.onnx_files.export import to_onnx
from npuc.ops.interpreter import run
from npuc.reference import session
from npuc.target import Options
from npuc.targets.bm1684.machine.parameters import SYSTEM_START, Machine
from npuc.targets.bm1684.program.artefact import Contents, of_words, to_words
from npuc.targets.bm1684.simulate import running, simulator
from npuc.targets.bm1684.target import FIRMWARE_HEADER
from tests.bm1684 import chips, fix8b
from tests.bm1684.kernels import need_compiler, vendor_libraries
from tests.cli.process import SYNTHETIC, npuc
from tests.compiled import causes
from tests.given import GIVEN as GIVEN_FILES
from tests.graphs.compiling import HOSTED, Case, check_compile
from tests.onnx_models import parse
from tests.passes import networks
from tests.passes.networks import node


def carried_out(case: fix8b.Case, folder: Path) -> tuple[Array, int]:
    """What the table leaves, and its cycles."""
    image = folder / "memory"
    case.memory.tofile(image)
    cycles = simulator.carry_out(case.table, fix8b.ADDRESSES, image, Machine()).cycles
    return np.fromfile(image, np.uint8), cycles


@pytest.mark.parametrize("seed", range(18))
def test_layers_give_the_integers_of_their_description(seed: int, tmp_path: Path) -> None:
    need_compiler()
    case = fix8b.case(seed)
    found, _ = carried_out(case, tmp_path)
    part = found[fix8b.AT :][: case.expected.size]
    np.testing.assert_array_equal(part.reshape(case.expected.shape), case.expected)


@pytest.mark.parametrize("seed", range(102, 120))
def test_layers_give_the_vendors_values_and_cycles(seed: int, tmp_path: Path) -> None:
    libraries = vendor_libraries()
    case = fix8b.case(seed)
    found, cycles = carried_out(case, tmp_path)
    image = tmp_path / "memory"
    case.memory.tofile(image)
    theirs = running.carry_out(case.table, fix8b.ADDRESSES, image, libraries)
    assert (np.fromfile(image, np.uint8) == found).all()
    assert abs(cycles - theirs) <= 8  # each of eight moves agrees within one cycle


def test_halves_are_rounded_up_and_results_saturate_by_hand(tmp_path: Path) -> None:
    need_compiler()
    values = np.array([3, -3, 127, -128], np.int8).view(np.uint8)  # the four images of one pixel
    memory = np.zeros(4096, np.uint8)
    memory[:4] = values
    lines = [
        "gdma_32bit_cpy_S2L @0 $0+0 (1,1,1,1) - -",
        "bdc_fix8b_rescale @65536 @0 @131072 (1,1,1,1) 1 1 1 0",
        "bdc_fix8b_rescale @66048 @0 @131072 (1,1,1,1) 3 1 1 0",
        "bdc_fix8b_rescale @66560 @0 @131072 (1,1,1,1) 3 0 1 1",
        *(f"gdma_32bit_cpy_L2S $0+{64 * at} @{65536 + 512 * at} (1,1,1,1) - -" for at in range(3)),
        "layer 0",
    ]
    case = fix8b.Case("".join(f"{line}\n" for line in lines).encode(), memory, memory)
    found, _ = carried_out(case, tmp_path)
    assert found[0:4].view(np.int8).tolist() == [2, -1, 64, -64]  # 1.5, -1.5, 63.5, -64
    assert found[64:68].view(np.int8).tolist() == [5, -4, 127, -128]  # 4.5, -4.5, and beyond
    assert found[128:132].tolist() == [9, 0, 255, 0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("bdc_fix8b_rescale @65536 @0 @131072 (1,1,1,1) 128 1 1 0", "scale is 128"),
        ("bdc_fix8b_rescale @65536 @0 @131072 (1,1,1,1) 1 16 1 0", "shift is 16"),
        ("bdc_fix8b_rescale @65536 @0 @131072 (1,1,1,1) 1 1 0 0", "no operand has a sign"),
        ("bdc_fix8b_rescale @0 @0 @131072 (1,1,1,1) 1 1 1 0", "shares"),
        ("bdc_fix8b_product @65536 @0 @0 @131072 (1,1,1,1) (1,1,1,1) 128 1 1 1 0", "scale is 128"),
        ("bdc_fix8b_product @65536 @0 @0 @131072 (1,1,1,1) (1,1,1,1) 1 32 1 1 0", "shift is 32"),
        ("bdc_fix8b_product @65536 @0 @0 @131072 (1,1,1,1) (1,1,2,1) 1 1 1 1 0", "second operand's shape"),
        ("bdc_fix8b_product @0 @0 @0 @131072 (1,1,1,1) (1,1,1,1) 1 1 1 1 0", "shares"),
        ("bdc_fix8b_lookup @65536 @0 @131072 (1,1,1,1) 0 4", "never written"),
        ("bdc_fix8b_lookup @65536 @0 @131072 (1,1,1,1) 2424 4", "outside"),
        ("bdc_fix8b_max_pool2d @65536 @0 (1,1,1,1) 1 1 [1,0,0,0] <1,1> 1 4", "padding alone"),
        ("bdc_fix8b_rescale @33095680 @33030144 @33161216 (2,2,1,1) 1 1 1 0", "wrap once more"),
        ("bdc_fix8b_max_pool2d @589824 @0 (1,1,1,1) 1 1 [0,0,0,0] <1,1> 1 4", "NPU"),
    ],
)
def test_what_was_not_seen_on_the_vendors_model_is_refused(line: str, reason: str, tmp_path: Path) -> None:
    need_compiler()
    table = f"gdma_32bit_cpy_S2L @0 $0+0 (1,1,1,1) - -\n{line}\nlayer 0\n".encode()
    memory = np.zeros(4096, np.uint8)
    with pytest.raises(simulator.ArtefactError, match=reason):
        carried_out(fix8b.Case(table, memory, memory), tmp_path)


def test_a_region_has_calls_of_the_interface_or_of_the_firmware(tmp_path: Path) -> None:
    need_compiler()
    lines = [
        "gdma_32bit_cpy_S2L @0 $0+0 (1,1,1,1) - -",
        "parallel_start",
        "bdc_fix8b_rescale @65536 @0 @131072 (1,1,1,1) 1 1 1 0",
        "bdc_32bit_cpy @196608 @0 (1,1,1,1) - -",
        "parallel_end",
        "layer 0",
    ]
    memory = np.zeros(4096, np.uint8)
    with pytest.raises(simulator.ArtefactError, match="count apart"):
        carried_out(fix8b.Case("".join(f"{line}\n" for line in lines).encode(), memory, memory), tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("images", [1, 4, 6])
def test_words_of_four_images_and_back(images: int, dtype: str) -> None:
    values = np.arange(-128, -128 + 6 * images, dtype=np.int16).astype(np.int8).reshape(images, 2, 3)
    words = to_words(values, dtype)
    assert words[0] == (128 if dtype == "int8" else 0)
    np.testing.assert_array_equal(of_words(words, values.shape, dtype), values)


def network(images: int, seed: int = 0) -> onnx.ModelProto:
    """Convolutions of three kinds, a sum, pools, a table, a product, a fully connected layer, a Softmax."""
    net = NetworkBuilder("mixed", seed)
    x = net.input((images, 3, 12, 10))
    x = net.relu(net.conv(x, 70, 3, pads=(1, 1, 1, 1)))
    y = net.relu6(net.depthwise(x, 3, pads=(1, 1, 1, 1)))
    y = net.conv(y, 70, 1)
    x = net.relu(net.add(x, y))
    x = net.pool("MaxPool", x, 3, stride=2, pads=(1, 1, 1, 1))
    gate = net.node("Sigmoid", [x], net.shapes[x])
    x = net.conv(net.node("Mul", [x, gate], net.shapes[x]), 20, 3, stride=2)
    y = net.gemm(net.flatten(net.global_average_pool(x)), 5)
    return net.finish(y, net.node("Softmax", [y], net.shapes[y], axis=-1))


@pytest.mark.parametrize("images", [1, 5])
def test_a_network_of_all_layers_is_bit_exact(images: int, tmp_path: Path) -> None:
    need_compiler()
    onnx.save(network(images), tmp_path / "m.onnx")
    model, out = tmp_path / "m.onnx", tmp_path / "m.npu"
    npuc("compile", *SYNTHETIC, model, "--target", "bm1684", "--precision", "int8", "-O0", "-o", out).done()
    found = npuc("verify", model, out, "--samples", "2", "--json").json
    assert found["bit_exact"] is True
    assert found["outputs"][0]["sqnr_db"] > 12


@pytest.mark.parametrize("level", ["1", "2"])
def test_weights_of_layers_of_a_batch_are_improved(level: str) -> None:
    need_compiler()
    random = np.random.default_rng(1)
    w, x = random.standard_normal((4, 4, 3, 3)), random.standard_normal((6, 3, 4, 5, 5)) + 0.3
    given = {name: each.astype(np.float32) for name, each in (("w", w), ("x", x))}
    text = "g (float[3,4,5,5] x, float[4,4,3,3] w) => (float[3,4,3,3] y) { y = Conv(x, w) }"
    model = parse(text)
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(given["w"], "w"))
    samples = {"x": given["x"]}
    program = api.compile(model, "bm1684", precision="int8", calibration=samples, level=level)
    wanted = np.stack([session(model).run(None, {"x": each})[0] for each in samples["x"]])
    error = program.run(samples)["y"].reshape(wanted.shape) - wanted
    assert np.square(error).sum() < 1e-3 * np.square(wanted).sum()


def test_four_images_take_little_longer_than_one(tmp_path: Path) -> None:
    need_compiler()
    cycles = list[int]()
    for images in (1, 4):
        model = tmp_path / f"{images}.onnx"
        onnx.save(network(images), model)
        command = (
            "compile", *SYNTHETIC, model, "--target", "bm1684", "--precision", "int8", "-O0", "--proof", "off",
            "--json",
        )  # fmt: skip
        cycles.append(npuc(*command, "-o", tmp_path / f"{images}.npu").json["cycles"])
    assert cycles[0] < cycles[1] < 1.5 * cycles[0]


def test_the_exported_c_computes_what_the_table_does(tmp_path: Path) -> None:
    need_compiler()
    onnx.save(network(2), tmp_path / "m.onnx")
    command = (
        "compile", *SYNTHETIC, tmp_path / "m.onnx", "--target", "bm1684", "--precision", "int8", "-O0", "--proof",
        "off",
    )  # fmt: skip
    npuc(*command, "-o", tmp_path / "m.npu").done()
    npuc("export", tmp_path / "m.npu", "--format", "okkernel", "-o", tmp_path / "c").done()
    program = programs.load(tmp_path / "m.npu")
    contents = Contents.of(program.manifest)
    weights, data = program.files["weights.bin"], np.random.default_rng(1).integers(0, 256, 1 << 18)
    memory = data.astype(np.uint8)
    starts = np.cumsum([0, *(-(-region.bytes // 128) * 128 for region in contents.regions)])
    memory[: len(weights)] = np.frombuffer(weights, np.uint8)
    arguments = (SYSTEM_START + starts[:-1]).astype("<u8").tobytes()
    sources = {path.name: path.read_bytes() for path in (tmp_path / "c").glob("*.[ch]")}
    assert b"not run on silicon" in sources["npuc_m_ok_device_kernel.c"]
    found = chips.simulate(sources, "npuc_m_kernel", arguments, memory, Machine())
    image = tmp_path / "memory"
    memory.tofile(image)
    cost = simulator.carry_out(program.files["calls.txt"], arguments, image, Machine())
    assert found.cost == cost
    assert (found.memory == np.fromfile(image, np.uint8)).all()


def _rounded(x: str, y: str, zero: int, dtype: str = "int8") -> Node:
    return node("FakeQuantize", x, y, scale=0.25, zero_point=zero, dtype=dtype)


CONV = node("Conv", "x w", "a")
GIVEN: dict[str, tuple[tuple[Node, ...], str]] = {
    "steps from 0 on": ((CONV, _rounded("a", "y", 0, "uint8")), "ok"),
    "steps as far each way": ((CONV, _rounded("a", "y", 0)), "ok"),
    "a zero point that no integer of the chip is": ((CONV, _rounded("a", "y", -127)), "ok"),
    "a zero point of which nothing is lost": ((node("Conv", "x w", "r", activation="Relu"),
        _rounded("r", "y", -128)), "ok"),
    "a limit at 0 before steps below it": ((node("Relu", "x", "r"), _rounded("r", "y", -5)), "ok"),
    "integers from -128 on that are an output": ((CONV, node("QuantizeLinear", "a s low", "y")), "ok"),
    "scales of the channels of an activation": ((CONV, node("QuantizeLinear", "a three zeros", "q", axis=1),
        node("DequantizeLinear", "q three zeros", "y", axis=1)), HOSTED),
}  # fmt: skip


@pytest.mark.parametrize("given", GIVEN)
def test_what_a_model_says_of_its_steps_holds_or_is_left_to_the_host(given: str, tmp_path: Path) -> None:
    need_compiler()
    nodes, outcome = GIVEN[given]
    constants = {
        "w": np.array([[1, -1], [0.5, -2], [-3, 1]], np.float32).reshape(3, 2, 1, 1),
        "s": np.float32(0.05), "low": np.int8(-128),
        "three": np.array([0.1, 0.2, 0.3], np.float32), "zeros": np.zeros(3, np.int8),
    }  # fmt: skip
    used = {name for each in nodes for name in each.inputs}
    graph = networks.network(
        (1, 2, 4, 4), "y", *nodes, **{name: constants[name] for name in constants if name in used}
    )
    samples = np.linspace(-9, 5, 64, dtype=np.float32).reshape(2, 1, 2, 4, 4)
    values = [{"x": each, **run(graph, {"x": each})} for each in samples]
    assert check_compile(graph, values, Case("bm1684", "int8"), tmp_path) == outcome


def test_channels_between_parts_of_the_host_have_scales_of_their_own(tmp_path: Path) -> None:
    """A depthwise convolution between functions of the host, with weights of 0.01 to 1: 40 dB, else 34."""
    need_compiler()
    sizes = np.geomspace(0.01, 1, 6).astype(np.float32)
    w = np.random.default_rng(0).standard_normal((6, 1, 3, 3)).astype(np.float32) * sizes[:, None, None, None]
    graph = networks.network((1, 6, 5, 5), "y", node("Ceil", "x", "s"),
        node("Conv", "s w", "c", group=6, pads=(1, 1, 1, 1)), node("Floor", "c", "y"), w=w)  # fmt: skip
    values = np.random.default_rng(1).standard_normal((24, 1, 6, 5, 5)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=values)
    model, samples, out = tmp_path / "m.onnx", tmp_path / "samples.npz", tmp_path / "m.npu"
    onnx.save(to_onnx(graph), model)
    npuc("compile", model, "--target", "bm1684", "--precision", "int8", "--calibration", samples, "-o", out).done()
    report = npuc("verify", model, out, "--data", samples, "--json").json
    assert report["bit_exact"]
    conv = next(each for each in report["layers"] if each["op"] == "IntConv")
    assert conv["entire"]["sqnr_db"] > 38
    manifest = json.loads((out / "npu" / "part_0" / "manifest.json").read_text())
    assert [each["op"] for each in manifest["steps"] if each["op"] == "Mul"] == ["Mul", "Mul"]
    assert manifest["report"]["host_steps"] == []  # conversions, like the rounding beside them


SHARED = GIVEN_FILES / "models"


def test_a_part_between_integers_of_the_host_is_an_integer_program(tmp_path: Path) -> None:
    """It converts nothing: its inputs and outputs are the model's integers already."""
    need_compiler()
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[6,8] x) => (float[1,6,16] y) '
        "<float s = {0.02}, float t = {0.05}, int8 zero = {0}, int64[3] rows = {1, 6, 16}>"
        "{ q = QuantizeLinear(x, s, zero)\n d = DequantizeLinear(q, s, zero)\n a = Gemm(d, w)\n "
        "r = QuantizeLinear(a, t, zero)\n e = DequantizeLinear(r, t, zero)\n f = Reshape(e, rows)\n y = Sin(f) }"
    )
    model, random = onnx.parser.parse_model(text), np.random.default_rng(5)
    weights = random.normal(0, 0.3, (8, 16)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    made, out = random.normal(0.1, 0.8, (4, 6, 8)).astype(np.float32), tmp_path / "m.npu"
    np.savez(tmp_path / "samples.npz", x=made)
    command = ("compile", tmp_path / "m.onnx", "--target", "bm1684", "--precision", "int8")
    report = npuc(*command, "--calibration", tmp_path / "samples.npz", "-o", out, "--json").json
    assert report["proof"]["bit_exact"] is True
    part = programs.load(out / "npu" / "part_0")
    assert part.precision == "int8" and part.manifest["steps"] == []
    assert npuc("verify", tmp_path / "m.onnx", out, "--data", tmp_path / "samples.npz", "--json").json["bit_exact"]
    npuc("export", out / "npu" / "part_0", "--format", "okkernel", "-o", tmp_path / "c").done()
    assert any(path.name in FIRMWARE_HEADER for path in (tmp_path / "c").rglob("*.h"))


QUANTISED = {
    "tiny_kws_int8qdq": "input_1=1,49,10,1",
    "tiny_resnet8_int8qdq": "input_1_int8=1,32,32,3",
    "tiny_sww_int8": "serving_default_input_1:0=1,30,1,40",
    "tiny_vww_int8qdq": "input_1_int8=1,96,96,3",
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_models_multiply_on_the_chip(name: str, tmp_path: Path) -> None:
    """Integers that are moved before they are dequantised, and a Softmax that is rounded, refuse nothing else."""
    need_compiler()
    if not (SHARED / f"{name}.onnx").is_file():
        pytest.skip("no folder `shared` with trained models beside the project")
    command = (
        "compile", *SYNTHETIC, SHARED / f"{name}.onnx", "--target", "bm1684", "--precision", "int8", "--json",
    )  # fmt: skip
    report = npuc(*command, "--input-shape", QUANTISED[name], "-o", tmp_path / "m.npu").json
    assert all(each["macs_on_npu"] == each["macs"] for each in report["account"]) and report["macs"] > 0


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("end", ["y = Reshape(a, flat)", "f = Reshape(a, flat)\n y = Softmax(f)"])
def test_what_moves_the_first_axis_at_the_end_is_left_to_the_host(end: str, images: int, tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,6,16] x) => (float[6,12] y) '
        f"<int64[2] flat = {{6, 12}}> {{ p = MatMul(x, w)\n a = Add(p, b)\n {end} }}"
    )
    model, random = onnx.parser.parse_model(text), np.random.default_rng(5)
    for name, shape in (("w", (16, 12)), ("b", (12,))):
        values = random.normal(0.05, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    x = random.normal(0.3, 1, (images, 1, 6, 16)).astype(np.float32)
    options = Options(precision="int8", proof="all")
    found = api.compile(model, "bm1684", calibration={"x": x}, options=options)
    assert found.report["proof"]["bit_exact"] and {*causes(found.program)} <= {HOST_STEP}
    wanted = np.stack([session(model).run(None, {"x": each})[0] for each in x])
    got = found.run({"x": x})["y"].reshape(wanted.shape)
    assert np.square(got - wanted).sum() < 1e-3 * np.square(wanted).sum()
