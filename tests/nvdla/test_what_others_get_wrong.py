"""What NVDLA's own compiler gets wrong with return code 0, and what its users lack: each of it right here.

The list is that of the facts on NVDLA (what its users lack, and what its compiler gets wrong).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.program import load
from npuc.target import target
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla.firmware.structures import unpack
from npuc.targets.nvdla.loadable import emulation, schema
from tests.nvdla.networks import compiled, expect_exact, verified
from tests.onnx_models import network, node, weights

ALL = pytest.mark.parametrize("name", ["nvdla-small", "nvdla-large", "nvdla-full"])


@ALL
def test_an_rgb_5x5_first_convolution_keeps_every_kernel_row(name: str, tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "y", pads=[2, 2, 2, 2])], (1, 3, 12, 12), {"w": weights(8, 3, 5, 5)})
    report = verified(model, tmp_path, name)
    expect_exact(report, 30.0)
    assert report["compiled"]["layers"][0]["weight_form"].startswith("image")


@ALL
def test_an_int8_group_convolution_keeps_every_group(name: str, tmp_path: Path) -> None:
    w = weights(12, 4, 3, 3)
    model = network([node("Conv", "x w", "y", group=3, pads=[1, 1, 1, 1])], (1, 12, 7, 7), {"w": w})
    expect_exact(verified(model, tmp_path, name))


@ALL
def test_a_depthwise_convolution_has_the_same_weights_in_every_run(name: str, tmp_path: Path) -> None:
    model = network(
        [node("Conv", "x w", "y", group=40, pads=[1, 1, 1, 1])], (1, 40, 7, 7), {"w": weights(40, 1, 3, 3)}
    )
    (tmp_path / "again").mkdir()
    expect_exact(verified(model, tmp_path, name))
    first, second = (compiled(model, folder, name)[2] for folder in (tmp_path, tmp_path / "again"))
    assert first.files == second.files


@ALL
def test_leaky_relu_keeps_its_slope(name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("LeakyRelu", "a", "y", alpha=0.3)]
    report = verified(network(nodes, (1, 4, 6, 6), {"w": weights(8, 4, 1, 1)}), tmp_path, name)
    expect_exact(report, 30.0)
    assert len(report["compiled"]["layers"]) == 1


@pytest.mark.parametrize("name", ["nvdla-large", "nvdla-full"])
def test_an_int8_sigmoid_is_no_table_of_zeros(name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Sigmoid", "a", "y")]
    report = verified(network(nodes, (1, 4, 6, 6), {"w": weights(8, 4, 1, 1)}), tmp_path, name)
    expect_exact(report, 30.0)
    assert not report["compiled"]["host_steps"]


def test_an_int8_sigmoid_without_tables_is_the_hosts(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Sigmoid", "a", "b"), node("Conv", "b v", "y")]
    model = network(nodes, (1, 4, 6, 6), {"w": weights(8, 4, 1, 1), "v": weights(5, 8, 3, 3)})
    report = verified(model, tmp_path, "nvdla-small")
    expect_exact(report, 30.0)
    assert [step["op"] for step in report["compiled"]["host_steps"]] == ["Sigmoid"]


@ALL
def test_a_deconvolution_runs(name: str, tmp_path: Path) -> None:
    """NVDLA's own compiler emits operations that the driver rejects; the loadable is checked by its rules."""
    nodes = [node("ConvTranspose", "x w", "y", strides=[2, 2], pads=[1, 1, 1, 1])]
    report = verified(network(nodes, (1, 4, 5, 5), {"w": weights(4, 6, 3, 3)}), tmp_path, name)
    expect_exact(report, 30.0)
    assert report["compiled"]["host_steps"] == []
    files = target(name).export(load(tmp_path / "network.npu"), "loadable")
    assert loadables.read(files["network.nvdla"]).blobs


@ALL
def test_an_average_over_24x24_ends(name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "b"), node("GlobalAveragePool", "b", "y")]
    expect_exact(verified(network(nodes, (1, 4, 24, 24), {"w": weights(8, 4, 1, 1)}), tmp_path, name))


@ALL
@pytest.mark.parametrize("channels", [3, 16])  # the convolution would take 3 as an image, SDP would not
def test_a_residual_addition_is_part_of_the_convolution(channels: int, name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Add", "a x", "b"), node("Relu", "b", "y")]
    w = weights(channels, channels, 3, 3)
    report = verified(network(nodes, (1, channels, 6, 6), {"w": w}), tmp_path, name)
    expect_exact(report, 30.0)
    assert len(report["compiled"]["layers"]) == 1


def test_512_to_512_channels_3x3_at_14x14_are_split_for_nv_small(tmp_path: Path) -> None:
    model = network(
        [node("Conv", "x w", "y", pads=[1, 1, 1, 1])], (1, 512, 14, 14), {"w": weights(512, 512, 3, 3)}
    )
    report = verified(model, tmp_path, samples=1)
    expect_exact(report)
    assert report["compiled"]["layers"][0]["jobs"] > 1


@ALL
def test_prelu_runs(name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("PRelu", "a slope", "y")]
    slope = np.linspace(-0.5, 0.9, 8, dtype=np.float32).reshape(8, 1, 1)
    report = verified(network(nodes, (1, 4, 6, 6), {"w": weights(8, 4, 1, 1), "slope": slope}), tmp_path, name)
    expect_exact(report, 30.0)
    assert len(report["compiled"]["layers"]) == 1


@ALL
def test_elu_runs(name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Elu", "a", "y")]
    expect_exact(verified(network(nodes, (1, 4, 6, 6), {"w": weights(8, 4, 1, 1)}), tmp_path, name))


@ALL
def test_slice_and_reshape_run(name: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("Slice", "a starts ends axes", "b"),
        node("Reshape", "b shape", "c"),
        node("Gemm", "c v", "y"),
    ]
    constants = {
        "w": weights(8, 4, 1, 1), "v": weights(6 * 2 * 5, 7), "starts": np.array([1, 0]), "ends": np.array([7, 2]),
        "axes": np.array([1, 2]), "shape": np.array([1, 60]),
    }  # fmt: skip
    expect_exact(verified(network(nodes, (1, 4, 5, 5), constants), tmp_path, name))


@ALL
def test_a_fully_connected_layer_whose_kernel_group_exceeds_the_buffer_is_split(name: str, tmp_path: Path) -> None:
    """VGG's first one, a quarter as wide: kernels of 25,088 bytes, of which nv_small's CBUF holds no 8."""
    model = network(
        [node("Flatten", "x", "a"), node("Gemm", "a w b", "c"), node("Relu", "c", "d"), node("Gemm", "d v", "y")],
        (1, 512, 7, 7),
        {"w": weights(25088, 20) * 30, "b": np.zeros(20, np.float32), "v": weights(20, 6)},
    )
    expect_exact(verified(model, tmp_path, name, samples=1), 10.0)  # sums of 25,088 products of noise


def test_int8_softmax_in_a_loadable_has_scales(tmp_path: Path, shared: Path) -> None:
    """NVDLA's own compiler writes 1 for both: of its int8 result nothing but 0 and 1 is left."""

    def softmax_of(loadable: schema.Loadable) -> emulation.EmulatedOperation:
        (blob,) = (each for each in loadable.blobs if each.name == "task-1-op_list")
        return unpack(emulation.EmulatedOperation, blob.data)

    theirs = softmax_of(loadables.read((shared / "nvdla" / "loadables" / "chain_small_int8.nvdla").read_bytes()))
    nodes = [node("Conv", "x w", "a"), node("Softmax", "a", "y", axis=1)]
    _, _, program = compiled(network(nodes, (1, 4, 6, 6), {"w": weights(5, 4, 6, 6)}), tmp_path)
    ours = softmax_of(loadables.read(target("nvdla-small").export(program, "loadable")["network.nvdla"]))
    logits = np.array([90, 60, 30, 0, -30], np.int8)
    scale = next(step for step in program.manifest["steps"] if step.get("op") == "DequantizeLinear")["attrs"][
        "scale"
    ]
    powers = np.exp(logits * scale)
    assert set(emulation.softmax(theirs, logits).tolist()) <= {0, 1}
    np.testing.assert_allclose(emulation.softmax(ours, logits) / 127, powers / powers.sum(), atol=1.5 / 127)
