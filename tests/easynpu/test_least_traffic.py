"""Programs that move no word twice: maps in sections, joined maps stored once, taps of averages shared.

Expected words are counted by hand from the layout: a map takes rows * columns * (channels / 16) words, a dense
layer per 16 outputs 5 words and one for each weight of an output, and 5 more for each further 256 channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import npuc
from npuc import program
from npuc.ir import Array
from npuc.reference import session
from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.assembling import expect_legal
from tests.compiled import verified
from tests.onnx_models import network

EASYNPU = target("easynpu")
WORD = 16


def _conv(x: str, y: str, name: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, f"{name}.w", f"{name}.b"], [y], name, **attrs)


def _weights(name: str, *shape: int) -> dict[str, Array]:
    random = np.random.default_rng(len(name) + sum(shape))
    scale = np.prod(shape[1:]) ** -0.5
    weights, bias = random.standard_normal(shape) * scale, random.standard_normal(shape[0]) + 0.3
    return {f"{name}.w": weights.astype(np.float32), f"{name}.b": bias.astype(np.float32)}


def _model(folder: Path, nodes: Sequence[onnx.NodeProto], x: Sequence[int], constants: dict[str, Array]) -> Path:
    onnx.save(network(nodes, [1, *x], constants), folder / "model.onnx")
    return folder / "model.onnx"


def _proved(model: Path, folder: Path, **options: Any) -> program.Program:
    """The program, bit exact against onnxruntime and free of reads before writes."""
    options = {"level": "0", "objective": "traffic"} | options
    loaded, report = verified(Request(model, EASYNPU, Options(**options)), folder)
    assert report["bit_exact"]
    expect_legal(loaded)
    return loaded


def _moved(found: program.Program) -> tuple[int, int]:
    """Words of maps and of weights of the first inference."""
    traffic = found.manifest["report"]["host_traffic"]
    stays = sum(each["words"] for each in found.manifest["init"] if each["memory"] == "weight")
    return traffic["map_bytes"] // WORD, traffic["weight_bytes"] // WORD + stays


POINTWISE_WEIGHTS = 16 * (512 + 10)


@pytest.mark.parametrize("extents", [(7, 7), (7, 10)])
def test_a_map_larger_than_either_memory_lies_in_both(extents: tuple[int, int], tmp_path: Path) -> None:
    """512 channels of 49 and 70 pixels, in halves of 784 and 1,120 words of 1,280; 32 outputs leave at a time."""
    nodes = [_conv("x", "y", "c", kernel_shape=[1, 1])]
    model = _model(tmp_path, nodes, [512, *extents], _weights("c", 256, 512, 1, 1))
    pixels = extents[0] * extents[1]
    assert _moved(_proved(model, tmp_path)) == (pixels * (32 + 16), POINTWISE_WEIGHTS)


def test_a_map_beside_which_no_result_has_room_goes_in_tiles(tmp_path: Path) -> None:
    """77 pixels leave 48 words in either memory, 16 outputs take 77: two tiles load the weights twice."""
    nodes = [_conv("x", "y", "c", kernel_shape=[1, 1])]
    model = _model(tmp_path, nodes, [512, 7, 11], _weights("c", 256, 512, 1, 1))
    assert _moved(_proved(model, tmp_path)) == (77 * (32 + 16), 2 * POINTWISE_WEIGHTS)


@pytest.mark.parametrize("first", ["scale", "table"])
def test_a_function_of_one_element_is_computed_as_its_map_is_loaded(first: str, tmp_path: Path) -> None:
    """Beside 1,568 words no second map of that size has room; 6 words scale 16 channels, 7 are a table.

    So few channels are loaded at a time. Two more words sum over 128 channels each, for each 16 of 256 outputs.
    """
    constants = _weights("c", 256, 512, 1, 1)
    if first == "scale":
        nodes = [_conv("x", "s", "s", kernel_shape=[1, 1], group=512), helper.make_node("Relu", ["s"], ["t"])]
        constants |= _weights("s", 512, 1, 1, 1)
        words = 32 * 6
    else:
        nodes = [helper.make_node("Sigmoid", ["x"], ["t"])]
        words = 7
    nodes.append(_conv("t", "y", "c", kernel_shape=[1, 1]))
    model = _model(tmp_path, nodes, [512, 7, 7], constants)
    found = _proved(model, tmp_path)
    assert _moved(found) == (49 * (32 + 16), POINTWISE_WEIGHTS + 16 * 2 * 5 + words)


def test_what_a_depthwise_layer_reads_is_loaded_channel_by_channel(tmp_path: Path) -> None:
    """Beside its result of 1,568 words no map of that size has room. Two words sum over 256 channels each."""
    nodes = [
        _conv("x", "t", "d", kernel_shape=[3, 3], pads=[1] * 4, group=512),
        _conv("t", "y", "c", kernel_shape=[1, 1]),
    ]
    constants = _weights("c", 256, 512, 1, 1) | _weights("d", 512, 1, 3, 3)
    model = _model(tmp_path, nodes, [512, 7, 7], constants)
    parts = 16 * 2 * 5  # of 128 channels, where one of 256 leaves no room beside the other
    assert _moved(_proved(model, tmp_path)) == (49 * (32 + 16), POINTWISE_WEIGHTS + parts + 32 * 14)


def _dense_block(folder: Path, extent: int, layers: int) -> Path:
    """Every layer reads what all before it gave, 256 channels at first and 32 more each time."""
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {}
    joined, channels = "x", 256
    for at in range(layers):
        nodes.append(_conv(joined, f"t{at}", f"c{at}", kernel_shape=[1, 1]))
        constants |= _weights(f"c{at}", 32, channels, 1, 1)
        nodes.append(helper.make_node("Concat", [joined, f"t{at}"], [f"j{at}"], axis=1))
        joined, channels = f"j{at}", channels + 32
    nodes.append(_conv(joined, "y", "last", kernel_shape=[1, 1]))
    constants |= _weights("last", 16, channels, 1, 1)
    return _model(folder, nodes, [256, extent, extent], constants)


def test_what_is_joined_again_and_again_is_stored_once(tmp_path: Path) -> None:
    """Of 1,024 pixels: the weights of two layers (522 + 596 words) fit at once, those of three do not.

    So the first two layers load 16 words a pixel and store 2 + 2, the last two load all of these and store 1.
    """
    found = _proved(_dense_block(tmp_path, 32, 3), tmp_path)
    stores = [
        move["tensor"] for step in found.manifest["steps"] if step["kind"] == "segment" for move in step["stores"]
    ]
    assert not any(name.startswith("j") for name in stores)
    assert _moved(found)[0] == 1024 * ((16 + 2 + 2) + (16 + 2 + 2 + 1))


def test_joined_maps_that_a_memory_holds_stay_joined(tmp_path: Path) -> None:
    """16 pixels: the whole block is one run, and nothing but its border is moved."""
    maps, _ = _moved(_proved(_dense_block(tmp_path, 4, 3), tmp_path))
    assert maps == 16 * (16 + 1)


@pytest.mark.parametrize(
    ("half", "extents", "step"),
    [
        (32, (16, 40), 2),  # 640 pixels of 4 words: all that both memories hold
        (32, (14, 46), 2),
        (32, (14, 46), 1),
        (48, (2, 213), 2),
        (48, (7, 61), 2),
        (40, (8, 64), 2),  # the second half does not begin with a word
    ],
)
def test_every_other_channel_of_what_is_joined_is_counted(
    half: int, extents: tuple[int, int], step: int, tmp_path: Path
) -> None:
    """Channels from 0 and from 1, as after a channel shuffle: both readers see the whole map, and zero weights."""
    nodes = [_conv("x", each, each, kernel_shape=[1, 1]) for each in "ab"]
    nodes.append(helper.make_node("Concat", ["a", "b"], ["j"], "j", axis=1))
    constants = _weights("a", half, 8, 1, 1) | _weights("b", half, 8, 1, 1)
    constants |= {"end": np.array([2 * half]), "axis": np.array([1]), "step": np.array([step])}
    for first in (0, 1):
        constants |= {f"s{first}": np.array([first])}
        count = len(range(first, 2 * half, step))
        nodes.append(helper.make_node("Slice", ["j", f"s{first}", "end", "axis", "step"], [f"e{first}"]))
        nodes.append(_conv(f"e{first}", f"c{first}", f"c{first}", kernel_shape=[1, 1]))
        constants |= _weights(f"c{first}", 8, count, 1, 1)
    nodes.append(helper.make_node("Concat", ["c0", "c1"], ["y"], "y", axis=1))
    found = _proved(_model(tmp_path, nodes, [8, *extents], constants), tmp_path)
    assert found.manifest["report"]["executed_macs"] == extents[0] * extents[1] * 8 * (2 * half) * 3


def _average(folder: Path, channels: int, height: int, width: int) -> Path:
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"], "mean")]
    return _model(folder, nodes, [channels, height, width], {})


@pytest.mark.parametrize(
    ("channels", "height", "width", "words"),
    [
        (16, 7, 7, 5 + 49),
        (48, 7, 7, 5 + 49),
        (40, 7, 7, 2 * (5 + 49)),  # the last 8 channels leave lanes empty: another block
        (48, 8, 8, 5 + 64),
        (48, 8, 9, 5 + 36),  # beyond 64 entries of an ifmap pad: two words of 4 rows, whose taps are the same
    ],
)
def test_an_average_s_channels_share_its_taps(
    channels: int, height: int, width: int, words: int, tmp_path: Path
) -> None:
    found = _proved(_average(tmp_path, channels, height, width), tmp_path)
    assert _moved(found) == (-(-channels // 16) * (height * width + 1), words)


def test_a_map_that_no_dtcm_holds_stays_for_its_product(tmp_path: Path) -> None:
    """96 channels of 300 pixels, 1,800 words, which no DTCM holds: nothing but x and the products is moved."""
    nodes = [
        _conv("x", "a", "a", kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["a"], ["p"], "p"),
        _conv("p", "g", "g", kernel_shape=[1, 1]),
        helper.make_node("Mul", ["a", "g"], ["y"], "y"),
    ]
    constants = _weights("a", 96, 16, 1, 1) | _weights("g", 96, 96, 1, 1)
    found = _proved(_model(tmp_path, nodes, [16, 3, 100], constants), tmp_path)
    assert _moved(found)[0] == 300 + 1800


def test_documented_words_do_not_share_taps(tmp_path: Path) -> None:
    found = _proved(_average(tmp_path, 48, 7, 7), tmp_path, isa="documented")
    assert _moved(found)[1] == 3 * (5 + 49)


def test_averages_that_share_taps_are_means(tmp_path: Path) -> None:
    model = _average(tmp_path, 48, 9, 8)
    random = np.random.default_rng(5)
    x = (random.standard_normal((4, 1, 48, 9, 8)) + 3 * random.standard_normal((4, 1, 48, 1, 1))).astype(
        np.float32
    )
    found = npuc.compile(model, "easynpu", calibration={"x": x}).run({"x": x})["y"]
    run = session(model.read_bytes())
    wanted = np.stack([run.run(None, {"x": each})[0] for each in x])
    assert np.abs(found.reshape(wanted.shape) - wanted).max() <= np.abs(x).max() / 127


@pytest.mark.parametrize(
    ("channels", "kernel", "extents", "attrs"),
    [
        (512, (1, 1), (7, 7), {}),
        (272, (1, 1), (3, 1), {}),  # 17 columns of 16 channels
        (320, (1, 3), (4, 9), {"pads": [0, 1, 0, 1]}),
        (320, (2, 2), (6, 7), {"strides": [2, 2]}),
        (1280, (1, 1), (1, 1), {}),
        (512, (2, 1), (5, 6), {"dilations": [3, 2], "pads": [0, 0, 3, 0]}),
    ],
)
def test_documented_words_read_many_channels_as_more_columns(
    channels: int, kernel: tuple[int, int], extents: tuple[int, int], attrs: dict[str, Any], tmp_path: Path
) -> None:
    """[H, W, m C] has the bytes of [H, m W, C]: one word, whose weights are loaded once."""
    nodes = [_conv("x", "y", "c", kernel_shape=kernel, **attrs)]
    model = _model(tmp_path, nodes, [channels, *extents], _weights("c", 16, channels, *kernel))
    found = _proved(model, tmp_path, isa="documented", strict=True)
    assert _moved(found)[1] == 5 + channels * kernel[0] * kernel[1]
