"""Forms of weights in whole networks: which one is chosen, and that none changes a bit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc import running
from npuc.errors import NpucError
from npuc.ir import Array
from npuc.program import Program
from npuc.target import target
from tests.nvdla.networks import compiled, expect_exact, verified
from tests.onnx_models import network, node, weights


def pruned(share: float, *shape: int) -> Array:
    """Weights of which this share is zero."""
    dense = weights(*shape)
    return dense * (np.random.default_rng(sum(shape)).random(shape) >= share).astype(np.float32)


def pruned_network(share: float) -> onnx.ModelProto:
    """Two convolutions and a fully connected layer, of which this share of the weights is zero."""
    nodes = [
        node("Conv", "x u", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b v", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Flatten", "c", "d"),
        node("Gemm", "d w", "y", transB=1),
    ]
    constants = {
        "u": pruned(share, 64, 48, 3, 3), "v": pruned(share, 80, 64, 3, 3), "w": pruned(share, 100, 80 * 16)
    }  # fmt: skip
    return network(nodes, (1, 48, 8, 8), constants)


def _forms(report: dict[str, Any]) -> list[str]:
    return [layer["weight_form"] for layer in report["compiled"]["layers"] if layer["op"] == "convolution"]


def test_weights_of_which_80_percent_are_zero_are_compressed_and_move_fewer_bytes(tmp_path: Path) -> None:
    report = verified(pruned_network(0.8), tmp_path, "nvdla-full", weights="auto")
    expect_exact(report)
    assert _forms(report) == ["sparse"] * 3
    direct = verified(pruned_network(0.8), tmp_path, "nvdla-full", weights="direct")["compiled"]
    assert report["compiled"]["traffic_bytes"] < 0.5 * direct["traffic_bytes"]
    assert report["compiled"]["cycles"] < direct["cycles"]


def test_dense_weights_stay_as_they_are(tmp_path: Path) -> None:
    assert _forms(verified(pruned_network(0.0), tmp_path, "nvdla-full")) == ["direct"] * 3


def test_the_form_that_is_asked_for_is_used_wherever_it_can_be(tmp_path: Path) -> None:
    report = verified(pruned_network(0.0), tmp_path, "nvdla-full", weights="sparse")
    expect_exact(report)
    assert _forms(report) == ["sparse"] * 3


def test_compressed_weights_run_in_row_tiles_and_groups_of_kernels(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "y", pads=[1, 1, 1, 1])]
    model = network(nodes, (1, 160, 56, 56), {"w": pruned(0.8, 100, 160, 3, 3)})
    report = verified(model, tmp_path, "nvdla-full", samples=1)
    expect_exact(report)
    (layer,) = report["compiled"]["layers"]
    assert layer["weight_form"] == "sparse" and layer["jobs"] > 1


def test_depthwise_weights_are_mostly_zeros_and_compressed(tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "y", group=96)], (1, 96, 10, 10), {"w": weights(96, 1, 3, 3)})
    report = verified(model, tmp_path, "nvdla-full")
    expect_exact(report)
    assert _forms(report) == ["sparse"]


def test_weights_that_are_all_zero_are_not_compressed(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w b", "y")]
    constants = {"w": np.zeros((40, 64, 3, 3), np.float32), "b": weights(40, 1)[:, 0]}
    report = verified(network(nodes, (1, 64, 4, 4), constants), tmp_path, "nvdla-full", weights="sparse")
    expect_exact(report)
    assert _forms(report) == ["direct"]


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-large", "nvdla-full"])
@pytest.mark.parametrize(
    ("channels", "size", "stride", "pads"),
    [(3, 7, 2, [3, 3, 3, 3]), (1, 5, 1, [0, 0, 0, 0]), (4, 5, 1, [2, 2, 2, 2]), (2, 5, 2, [0, 1, 1, 0])],
)
def test_the_first_convolution_reads_an_image(
    channels: int, size: int, stride: int, pads: list[int], name: str, tmp_path: Path
) -> None:
    nodes = [node("Conv", "x w", "a", strides=[stride] * 2, pads=pads), node("Relu", "a", "y")]
    model = network(nodes, (1, channels, 21, 18), {"w": weights(20, channels, size, size)})
    report = verified(model, tmp_path, name)
    expect_exact(report)
    (layer,) = report["compiled"]["layers"]
    assert layer["weight_form"].startswith("image")
    direct = next(each for each in layer["alternatives"] if each["weight_form"] == "direct")
    image = next(each for each in layer["alternatives"] if each["weight_form"] == layer["weight_form"])
    assert layer["cycles"] < direct["cycles"] and image["bytes"] < direct["bytes"]  # more tiles move more bytes


@pytest.mark.parametrize(("precision", "channels", "pixels"), [
    ("int16", 1, "T_R16_I"), ("int16", 2, "T_A16B16G16R16"), ("int16", 4, "T_A16B16G16R16"),
    ("fp16", 1, "T_R16_F"), ("fp16", 3, "T_A16B16G16R16_F"),
])  # fmt: skip
def test_an_image_of_16_bits_has_the_format_of_its_precision(
    precision: str, channels: int, pixels: str, tmp_path: Path
) -> None:
    nodes = [node("Conv", "x w b", "y", strides=[2, 1], pads=[1, 0, 1, 2])]
    constants = {"w": weights(20, channels, 3, 5), "b": weights(20, 1)[:, 0]}
    model = network(nodes, (1, channels, 41, 38), constants)
    report = verified(model, tmp_path, "nvdla-full", precision=precision)
    assert report["bit_exact"] is (True if precision == "int16" else None)
    assert all(each["cosine"] > 0.999999 and each["sqnr_db"] > 65 for each in report["outputs"])
    (form,) = _forms(report)
    assert form.startswith("image")
    _, _, program = compiled(model, tmp_path, "nvdla-full", precision=precision)
    (load,) = (each for step in program.manifest["steps"] for each in step.get("loads", ()))
    assert load["place"]["pixels"] == pixels
    assert any(f"PIXEL_FORMAT={pixels}" in each["text"] for each in target("nvdla-full").listing(program))


def test_an_image_that_the_buffer_does_not_hold_is_cut_into_rows(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "y", pads=[1, 1, 1, 1])]
    report = verified(network(nodes, (1, 3, 240, 200), {"w": weights(8, 3, 3, 3)}), tmp_path, samples=1)
    expect_exact(report)
    (layer,) = report["compiled"]["layers"]
    assert layer["weight_form"] == "image, 2 planes" and layer["jobs"] > 1


def test_two_convolutions_read_the_same_image(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x u", "a", pads=[1, 1, 1, 1]),
        node("Conv", "x v", "b", pads=[2, 2, 2, 2]),
        node("Add", "a b", "y"),
    ]
    model = network(nodes, (1, 3, 9, 9), {"u": weights(16, 3, 3, 3), "v": weights(16, 3, 5, 5)})
    report = verified(model, tmp_path, "nvdla-full")
    expect_exact(report)
    assert all(each.startswith("image") for each in _forms(report))


@pytest.mark.parametrize(
    "other", [node("MaxPool", "x", "b", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Conv", "x g", "b", group=3)]
)
def test_a_map_that_something_else_reads_is_no_image(other: onnx.NodeProto, tmp_path: Path) -> None:
    nodes = [node("Conv", "x u", "a"), other, node("Concat", "a b", "y", axis=1)]
    constants = {"u": weights(16, 3, 1, 1), "g": weights(3, 1, 1, 1)}
    report = verified(network(nodes, (1, 3, 9, 9), constants), tmp_path, "nvdla-full")
    expect_exact(report)
    assert not any(each.startswith("image") for each in _forms(report))


def test_direct_asks_for_no_image_and_no_option(tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "y")], (1, 3, 12, 12), {"w": pruned(0.9, 32, 3, 5, 5)})
    assert _forms(verified(model, tmp_path, "nvdla-full", weights="direct")) == ["direct"]


def test_a_machine_file_without_compression_refuses_to_compress(tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text("compression = false\n")
    with pytest.raises(NpucError, match="machine plain has no sparse weights"):
        compiled(
            pruned_network(0.8), tmp_path, "nvdla-full", machine=str(tmp_path / "plain.toml"), weights="sparse"
        )


def test_the_image_of_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "y")], (1, 3, 12, 12), {"w": weights(8, 3, 5, 5)})
    _, _, program = compiled(model, tmp_path)
    segment = next(step for step in program.manifest["steps"] if step["kind"] == "segment")
    place = segment["loads"][0]["place"]
    for key, value in (("pixels", "T_R8"), ("pixels", "T_Z"), ("line_stride", 8), ("lanes", [[1, 3]])):
        before, place[key] = place[key], value
        with pytest.raises(NpucError, match="damaged"):
            _run(program)
        place[key] = before
    _run(program)


def _run(program: Program) -> None:
    from npuc.samples import loading as data

    samples = data.synthetic(running.program_inputs(program), 1)
    running.run_program(program, target("nvdla-small"), samples)


def _convolution(
    channels: int, extent: tuple[int, int], size: int, stride: int, pad: int | None = None
) -> onnx.ModelProto:
    pads = [size // 2 if pad is None else pad] * 4
    nodes = [node("Conv", "x w b", "a", pads=pads, strides=[stride] * 2), node("Relu", "a", "y")]
    constants = {"w": weights(48, channels, size, size), "b": weights(48, 1)[:, 0]}
    return network(nodes, (1, channels, *extent), constants)


@pytest.mark.parametrize(("precision", "least", "channels", "extent", "size", "stride"), [
    ("int8", 25.0, 64, (16, 12), 3, 1), ("int8", 25.0, 33, (7, 9), 3, 1), ("int8", 25.0, 20, (15, 22), 5, 2),
    ("int8", 25.0, 24, (18, 21), 6, 2), ("int16", 70.0, 40, (10, 13), 3, 1), ("int16", 70.0, 64, (16, 12), 3, 1),
    ("int16", 70.0, 20, (15, 22), 5, 2), ("int16", 70.0, 24, (18, 21), 6, 2),
])  # fmt: skip
def test_winograd_is_exact_in_its_own_arithmetic_and_near_fp32(
    precision: str, least: float, channels: int, extent: tuple[int, int], size: int, stride: int, tmp_path: Path
) -> None:
    model = _convolution(channels, extent, size, stride)
    report = verified(model, tmp_path, "nvdla-full", weights="winograd", precision=precision)
    expect_exact(report, least)
    assert _forms(report) == ["winograd"]


@pytest.mark.parametrize(("pad", "form"), [(2, "winograd"), (3, "direct")])
def test_no_tile_of_winograd_lies_above_the_map(pad: int, form: str, tmp_path: Path) -> None:
    report = verified(_convolution(64, (8, 8), 3, 1, pad), tmp_path, "nvdla-full", weights="winograd")
    expect_exact(report, 25.0)
    assert _forms(report) == [form]


@pytest.mark.parametrize(("most", "truncated"), [(1e9, 1), (0.5, 2)])
def test_winograd_cuts_as_many_bits_as_the_values_need(most: float, truncated: int, tmp_path: Path) -> None:
    """int16 reaches twice as far as the samples; not where a ReLU6 or its like ends where int16 does."""
    nodes = [
        node("Conv", "x u", "a"), node("Clip", "a low high", "b"), node("Conv", "b w", "y", pads=[1, 1, 1, 1])
    ]  # fmt: skip
    limits = {"low": np.float32(0), "high": np.float32(most)}
    constants = {"u": weights(64, 3, 1, 1), "w": np.abs(weights(48, 64, 3, 3)), **limits}
    model = network(nodes, (1, 3, 16, 16), constants)
    options = {"weights": "winograd", "precision": "int16"}
    expect_exact(verified(model, tmp_path, "nvdla-full", **options), 70.0)
    _, _, program = compiled(model, tmp_path, "nvdla-full", **options)
    texts = [each["text"] for each in target("nvdla-full").listing(program)]
    found = [each for each in texts if each.startswith("CSC.D_PRA_CFG") and "=0" not in each]
    assert found and all(f"PRA_TRUNCATE={truncated}" in each for each in found)


@pytest.mark.parametrize(
    ("precision", "extent", "least", "share"), [("int16", 40, 70.0, 0.8), ("int8", 56, 25.0, 0.7)]
)
def test_winograd_rounds_so_that_it_must_be_allowed(
    precision: str, extent: int, least: float, share: float, tmp_path: Path
) -> None:
    model = _convolution(64, (extent, extent), 3, 1)
    report = verified(model, tmp_path, "nvdla-full", samples=1, precision=precision)
    assert _forms(report) == ["direct"]
    allowed = verified(model, tmp_path, "nvdla-full", samples=1, precision=precision, allow=("winograd",))
    expect_exact(allowed, least)
    assert _forms(allowed) == ["winograd"]
    assert allowed["compiled"]["cycles"] < share * report["compiled"]["cycles"]


def test_winograd_in_row_tiles_writes_whole_tiles(tmp_path: Path) -> None:
    report = verified(_convolution(160, (54, 50), 3, 1), tmp_path, "nvdla-full", samples=1, weights="winograd")
    expect_exact(report, 25.0)
    (layer,) = report["compiled"]["layers"]
    assert layer["weight_form"] == "winograd" and layer["jobs"] > 1


@pytest.mark.parametrize(("channels", "form"), [(64, "winograd"), (3, "image, 2 lines, sparse")])
def test_forms_in_fp16_are_chosen_by_cycles_and_stay_near_fp32(channels: int, form: str, tmp_path: Path) -> None:
    model = _convolution(channels, (54, 50), 3, 1)
    report = verified(model, tmp_path, "nvdla-full", samples=1, precision="fp16")
    assert _forms(report) == [form]
    assert all(each["cosine"] > 0.999999 and each["sqnr_db"] > 60 for each in report["outputs"])


def test_winograd_with_strides_is_taken_only_where_asked_for(tmp_path: Path) -> None:
    """No hardware description has run its channel extension."""
    model = _convolution(64, (54, 50), 5, 2)
    report = verified(model, tmp_path, "nvdla-full", samples=1, allow=("winograd",))
    assert "winograd" not in _forms(report)[0]
    chosen = verified(model, tmp_path, "nvdla-full", samples=1, weights="winograd")
    assert _forms(chosen) == ["winograd"]


def test_winograd_is_not_taken_where_it_is_slower_unless_asked_for(tmp_path: Path) -> None:
    model = _convolution(64, (8, 8), 3, 1)
    assert _forms(verified(model, tmp_path, "nvdla-full", allow=("winograd",))) == ["direct"]


def test_a_residual_addition_joins_a_winograd_convolution(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x u", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b v", "c", pads=[1, 1, 1, 1]),
        node("Add", "c a", "y"),
    ]
    constants = {"u": weights(64, 64, 3, 3), "v": weights(64, 64, 3, 3)}
    for extent, forms in (((8, 12), ["winograd"] * 2), ((7, 12), ["winograd", "direct"])):
        report = verified(network(nodes, (1, 64, *extent), constants), tmp_path, "nvdla-full", weights="winograd")
        expect_exact(report)
        assert _forms(report) == forms


def test_winograd_surrounds_a_map_with_the_zero_point_that_its_model_gives(tmp_path: Path) -> None:
    quantised = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Conv", "d w", "y", pads=[1, 1, 1, 1]),
    ]
    constants = {"s": np.float32(0.02), "z": np.int8(-20), "w": weights(48, 64, 3, 3)}
    report = verified(network(quantised, (1, 64, 8, 8), constants), tmp_path, "nvdla-full", weights="winograd")
    expect_exact(report, 25.0)
    assert _forms(report) == ["winograd"]


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_a_small_convolution_is_exact_in_every_form(draw: st.DataObject) -> None:
    def number(low: int, high: int) -> int:
        return draw.draw(st.integers(low, high))

    channels, kernels, height, width = number(1, 70), number(1, 70), number(1, 6), number(1, 6)
    extent = (number(height, 12), number(width, 12))
    top, left, bottom, right = (number(0, each - 1) for each in (height, width, height, width))
    strides = [number(1, 3), number(1, 3)]
    full = [("nvdla-full", asked) for asked in ("auto", "direct", "sparse")]
    name, asked = draw.draw(st.sampled_from([*full, ("nvdla-small", "auto")]))
    if draw.draw(st.booleans()):
        channels = 1 + channels % 4
    share = draw.draw(st.sampled_from([0.0, 0.8]))
    nodes = [node("Conv", "x w", "y", pads=[top, left, bottom, right], strides=strides)]
    model = network(nodes, (1, channels, *extent), {"w": pruned(share, kernels, channels, height, width)})
    with TemporaryDirectory() as folder:
        report = verified(model, Path(folder), name, samples=2, weights=asked)
    assert report["bit_exact"] is True


@settings(deadline=None, max_examples=10)
@given(st.data())
def test_a_small_convolution_is_exact_by_winograd(draw: st.DataObject) -> None:
    def number(low: int, high: int) -> int:
        return draw.draw(st.integers(low, high))

    strides = [number(1, 3), number(1, 3)]
    kernel = [number(2 * each + 1, 3 * each) for each in strides]
    extent = [number(size, 20) for size in kernel]
    pads = [number(0, size - 1) for size in (*kernel, *kernel)]
    w = pruned(draw.draw(st.sampled_from([0.0, 0.8])), number(1, 40), number(5, 70), *kernel)
    nodes = [node("Conv", "x w", "y", pads=pads, strides=strides)]
    with TemporaryDirectory() as folder:
        model = network(nodes, (1, w.shape[1], *extent), {"w": w})
        report = verified(model, Path(folder), "nvdla-full", samples=2, weights="winograd")
    assert report["bit_exact"] is True
    assert _forms(report) == ["winograd"]
