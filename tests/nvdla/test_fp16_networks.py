"""Networks in fp16 on nv_full: compared with onnxruntime's float32, without calibration.

fp16 has 11 significant bits, a rounding of 78 dB; the bounds below leave room for its sums over some layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import npuc
from npuc import running
from npuc.errors import DoesNotFit, NpucError, Problem
from npuc.ir import Array
from npuc.models import MODELS
from npuc.ops.interpreter import run
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.targets.nvdla.machine.parameters import FULL
from npuc.targets.nvdla.network import quantising
from npuc.targets.nvdla.program.artefact import Contents
from npuc.targets.nvdla.quantisation import in_fp16
from tests.cli.process import npuc as npuc_run
from tests.compiled import compilation, optimised
from tests.nvdla.networks import compiled, expect_close, verified
from tests.onnx_models import network, node, weights

FP16 = {"name": "nvdla-full", "precision": "fp16"}
SHAPE = (1, 20, 9, 11)


def test_a_kernel_that_does_not_fit_beside_all_lines_is_cut_by_rows(tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "y")], (1, 256, 40, 40), {"w": weights(20, 256, 3, 3)})
    report = verified(model, tmp_path, samples=1, weights="direct", **FP16)
    expect_close(report, 65.0)
    assert report["compiled"]["layers"][0]["jobs"] > 1


@pytest.mark.parametrize("kernel", [3, 9, 17])
@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_windows_of_any_size_are_pooled(op: str, kernel: int, tmp_path: Path) -> None:
    attrs = {"kernel_shape": [kernel, kernel], "strides": [2, 2]}
    report = verified(network([node(op, "x", "y", **attrs)], (1, 5, 20, 21)), tmp_path, samples=1, **FP16)
    expect_close(report)


def test_an_upper_limit_behind_an_addition_takes_a_pass_of_its_own(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w b", "a"), node("Add", "a x", "s"), node("Clip", "s low high", "y")
    ]  # fmt: skip
    constants = {
        "w": weights(20, 20, 1, 1), "b": weights(20, 1)[:, 0],
        "low": np.float32(0), "high": np.float32(0.5),
    }  # fmt: skip
    report = verified(network(nodes, SHAPE, constants), tmp_path, samples=1, **FP16)
    expect_close(report)
    assert [layer["op"] for layer in report["compiled"]["layers"]] == ["convolution", "elementwise"]


def test_concat_and_split_take_no_operation(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x u", "a"),
        node("Conv", "x v", "b"),
        node("Concat", "a b", "c", axis=1),
        node("Slice", "c starts ends axes", "d"),
        node("Conv", "d w", "y"),
    ]
    constants = {
        "u": weights(5, 20, 1, 1), "v": weights(20, 20, 1, 1), "w": weights(9, 18, 1, 1),
        "starts": np.array([5]), "ends": np.array([23]), "axes": np.array([1]),
    }  # fmt: skip
    report = verified(network(nodes, SHAPE, constants), tmp_path, samples=1, **FP16)
    expect_close(report)
    assert [layer["op"] for layer in report["compiled"]["layers"]] == ["convolution"] * 3


@pytest.mark.parametrize("model", ["resnet8", "mobilenet_v2", "bc_resnet"])
def test_the_passes_mean_what_the_network_does(model: str, tmp_path: Path) -> None:
    """The graph of passes in float32, computed in numpy, against the network itself under onnxruntime."""
    path = tmp_path / "network.onnx"
    onnx.save(MODELS[model](), path)
    nvdla, options = target("nvdla-full"), Options(precision="fp16")
    graph = optimised(Request(path, nvdla, options))
    passes = in_fp16(graph, quantising.on_device(graph, FULL, "fp16")).graph
    assert {"NvConv", "NvElementwise"} & {each.op for each in passes.nodes}
    feeds = next(data.synthetic(running.input_types(graph), 1).feeds())
    exact = session(path.read_bytes()).run(None, feeds)
    for found, wanted in zip(run(passes, feeds).values(), exact, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=4e-3 * np.abs(wanted).max())


def test_weights_lie_in_groups_of_16_kernels_and_blocks_of_64_channels(tmp_path: Path) -> None:
    """Worked by hand from the document, Basic Weight for Direct Convolution, with 2 bytes an element."""
    w = (np.arange(18 * 70, dtype=np.float32) % 2048).reshape(18, 70, 1, 1)
    model = network([node("Conv", "x w", "y")], (1, 70, 4, 4), {"w": w})
    _, _, loaded = compiled(model, tmp_path, **FP16)
    stored = np.frombuffer(loaded.files["weights.bin"], np.float16)
    expected = [
        w[:16, :64].ravel(),  # group 0, block 0: kernel after kernel, 64 channels each
        w[:16, 64:].ravel(),  # group 0, block 1: 6 channels each
        w[16:, :64].ravel(),  # group 1: 2 kernels
        w[16:, 64:].ravel(),
    ]
    np.testing.assert_array_equal(stored[: w.size], np.concatenate(expected))
    texts = {entry["text"] for entry in target("nvdla-full").listing(loaded)}
    assert "CDMA.D_WEIGHT_SIZE_0 BYTE_PER_KERNEL=0x8b" in texts  # 70 elements of 2 bytes, minus one


def test_registers_say_fp16_and_a_line_takes_twice_the_entries(tmp_path: Path) -> None:
    """Worked by hand: 70 channels are 5 atoms of 16, an entry has 4: 4 pixels and a quarter of 4, 5 in all."""
    model = network([node("Conv", "x w", "y")], (1, 70, 4, 4), {"w": weights(3, 70, 1, 1)})
    _, _, loaded = compiled(model, tmp_path, **FP16)
    texts = [entry["text"] for entry in target("nvdla-full").listing(loaded)]
    for block in ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC"):
        text = next(each for each in texts if each.startswith(f"{block}.D_MISC_CFG"))
        assert "PROC_PRECISION=FP16" in text
    assert "CDMA.D_ENTRY_PER_SLICE ENTRIES=4" in texts


def _run(model: onnx.ModelProto, folder: Path, x: Array) -> Array:
    _, _, loaded = compiled(model, folder, **FP16)
    runner = target("nvdla-full").runner(loaded)
    return next(iter(runner({"x": x[None]}).values()))[0]


def test_what_exceeds_the_range_saturates_to_65504(tmp_path: Path) -> None:
    """FP16 Supporting: no module puts out an infinity, but the largest number."""
    x = np.array([60000.0, -60000.0, 7e4, -1e30], np.float32).reshape(1, 1, 1, 4)
    nodes = [node("Add", "x c", "y")]
    found = _run(network(nodes, (1, 1, 1, 4), {"c": np.full((1, 1, 1), 10000.0, np.float32)}), tmp_path, x)
    np.testing.assert_array_equal(found.ravel(), [65504.0, -49984.0, 65504.0, -55488.0])


def test_sums_are_rounded_once(tmp_path: Path) -> None:
    """Worked by hand: 2048 + 1 + 1 is 2050 in fp32, though fp16 would keep 2048 after each addition of 1."""
    w = np.array([1.0, 1.0, 1.0], np.float32).reshape(1, 3, 1, 1)
    x = np.array([2048.0, 1.0, 1.0], np.float32).reshape(1, 3, 1, 1)
    found = _run(network([node("Conv", "x w", "y")], (1, 3, 1, 1), {"w": w}), tmp_path, x)
    assert found.ravel().tolist() == [2050.0]


def test_a_constant_beyond_the_range_is_refused(tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "y")], (1, 3, 4, 4), {"w": np.full((2, 3, 1, 1), 7e4, np.float32)})
    with pytest.raises(NpucError, match="70000") as caught:
        compiled(model, tmp_path, **FP16)
    problem = caught.value.problems[0]
    assert (problem.code, problem.op, problem.node) == ("E301", "Conv", "y")


def test_a_model_that_is_quantised_already_is_refused(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("Conv", "d w", "y")
    ]  # fmt: skip
    constants = {"s": np.float32(0.1), "z": np.int8(0), "w": weights(2, 3, 1, 1)}
    with pytest.raises(NpucError, match="quantised already") as caught:
        compiled(network(nodes, (1, 3, 4, 4), constants), tmp_path, **FP16)
    assert {each.code for each in caught.value.problems} == {"E202"}


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-large"])
def test_other_configurations_have_no_fp16(name: str) -> None:
    assert target(name).precisions == ("int8",)


def test_a_machine_file_that_takes_fp16_away_is_heeded(tmp_path: Path) -> None:
    machine = tmp_path / "mine.toml"
    machine.write_text("fp16 = false\n")
    model = network([node("Relu", "x", "y")], (1, 3, 4, 4))
    with pytest.raises(NpucError, match="does not compute in fp16"):
        compiled(model, tmp_path, machine=str(machine), **FP16)


def test_a_manifest_with_a_precision_that_the_machine_has_not_is_refused(tmp_path: Path) -> None:
    _, _, loaded = compiled(network([node("Relu", "x", "y")], (1, 3, 4, 4)), tmp_path, **FP16)
    machine = {**FULL.as_dict(), "fp16": False}
    manifest = {**loaded.manifest, "machine": machine}
    with pytest.raises(NpucError, match="has no fp16"):
        Contents.of(manifest)


def test_two_compilations_give_the_same_bytes(tmp_path: Path) -> None:
    model = tmp_path / "network.onnx"
    onnx.save(MODELS["digits"](), model)
    first, second = (
        compilation(Request(model, target("nvdla-full"), Options(precision="fp16"))).program for _ in range(2)
    )
    assert first.files == second.files and first.manifest == second.manifest


# Values beyond the range of fp16: the host computes them, and a warning names those that lose bits


def _network(gain: float) -> onnx.ModelProto:
    nodes = [
        node("Conv", "x u", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b"),
        node("Conv", "b v", "c"), node("Add", "c b", "y"),
    ]  # fmt: skip
    constants = {"u": np.float32(gain) * weights(16, 3, 3, 3), "v": weights(16, 16, 1, 1)}
    return network(nodes, (1, 3, 8, 8), constants)


def _warnings(model: onnx.ModelProto, folder: Path, **options: Any) -> list[dict[str, Any]]:
    _, _, program = compiled(model, folder, "nvdla-full", **options)
    found: list[dict[str, Any]] = program.manifest["report"]["warnings"]
    return found


@pytest.mark.parametrize("gain", [1.0, 1e4])
def test_a_network_within_the_range_gives_no_warning(gain: float, tmp_path: Path) -> None:
    assert _warnings(_network(gain), tmp_path, precision="fp16") == []


def _refused(model: onnx.ModelProto, folder: Path) -> list[Problem]:
    with pytest.raises(DoesNotFit) as error:
        compiled(model, folder, "nvdla-full", precision="fp16")
    return list(error.value.problems)


def test_what_leaves_the_range_is_refused_with_its_layer_and_how_far_it_reaches(tmp_path: Path) -> None:
    """The sum inside the second convolution's pass is in fp32, and no tensor of it is in memory."""
    found = _refused(_network(5e4), tmp_path)
    assert {each.tensor for each in found} == {"b", "y"}
    first = found[0]
    assert (first.code, first.node, first.op, first.tensor) == ("E301", "a", "Conv", "b")
    assert "synthetic samples" in first.reason and "65504" in str(first.limit) and first.remedy
    assert float(first.reason.split("+/-")[1].split()[0]) > 65504


def test_values_that_are_all_tiny_are_named_too(tmp_path: Path) -> None:
    found = _warnings(_network(1e-6), tmp_path, precision="fp16")
    assert [each["tensor"] for each in found] == ["b", "y"]
    assert "loses bits" in found[0]["reason"]


def test_factors_that_fp16_would_make_zero_are_refused(tmp_path: Path) -> None:
    """Their products are of ordinary size: only the factors show it."""
    model = network([node("Conv", "x w", "y")], (1, 3, 6, 6), {"w": 1e-9 * weights(4, 3, 1, 1)})
    (found,) = _refused(model, tmp_path)
    assert found.code == "E301" and "no factor is larger than" in found.reason
    product = network([node("Mul", "x c", "y")], (1, 3, 6, 6), {"c": np.float32([1e-9])})
    assert "no factor is larger than" in _refused(product, tmp_path)[0].reason


@pytest.mark.parametrize("exponent", [-60, -26, 15, 20, 60, 100])
@pytest.mark.parametrize("op", ["Relu", "Sigmoid"])
def test_the_host_computes_what_fp16_does_not_hold(op: str, exponent: int) -> None:
    """Before, values became 0 or 65504 with a warning, and a few that saturated ended in E603."""
    model = network([node("Conv", "x w", "a"), node(op, "a", "y")], (1, 3, 6, 6), {"w": weights(4, 3, 1, 1)})
    x = (np.random.default_rng(1).standard_normal((4, 3, 6, 6)) * 2.0**exponent).astype(np.float32)
    program = npuc.compile(model, "nvdla-full", precision="fp16", calibration=x)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = np.concatenate([session.run(None, {"x": each[None]})[0] for each in x])
    np.testing.assert_allclose(program.run(x)["y"].reshape(wanted.shape), wanted, rtol=1e-6)


def test_zeros_and_what_is_not_a_number_give_no_warning(tmp_path: Path) -> None:
    """The root of what is negative is computed by the host."""
    model = network([node("Sqrt", "x", "a"), node("Conv", "a w", "y")], (1, 3, 6, 6), {"w": weights(4, 3, 1, 1)})
    assert _warnings(model, tmp_path, precision="fp16") == []
    assert _warnings(_network(0.0), tmp_path, precision="fp16") == []


def test_integers_have_scales_instead(tmp_path: Path) -> None:
    assert _warnings(_network(5e4), tmp_path, precision="int16") == []


def test_the_command_line_prints_warnings_and_reports_them(tmp_path: Path) -> None:
    path = tmp_path / "n.onnx"
    onnx.save(_network(1e-6), path)
    arguments = ["compile", path, "--target", "nvdla-full", "--precision", "fp16", "-o", tmp_path / "n.npu"]
    done = npuc_run(*arguments, "--json")
    assert done.code == 0
    assert "warning[W301] Conv 'a', tensor 'b': its values reach +/-" in done.err
    assert [each["tensor"] for each in done.json["warnings"]] == ["b", "y"]
    assert npuc_run(*arguments, "--quiet").err == ""


def test_calibration_data_says_what_values_there_are(tmp_path: Path) -> None:
    path, data = tmp_path / "n.onnx", tmp_path / "small.npz"
    onnx.save(_network(5e4), path)
    np.savez(data, x=np.full((2, 1, 3, 8, 8), 1e-3, np.float32))
    arguments = ["compile", path, "--target", "nvdla-full", "--precision", "fp16", "--calibration", data]
    done = npuc_run(*arguments, "-o", tmp_path / "n.npu")
    assert done.code == 0 and "warning" not in done.err
