"""`npuc verify --bisect`: a flipped bit is found in its layer, its instruction and its element."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.cli.process import Digits, npuc

BYTES = 16


def _layers(program: Path) -> list[dict[str, Any]]:
    """The report's layers that have weights."""
    layers = json.loads((program / "manifest.json").read_text())["report"]["layers"]
    return [each for each in layers if each["weight_words"]]


def _flip(program: Path, layer: int) -> None:
    """Flips bit 7 of the first output channel's first weight of a layer.

    Blocks lie in the layers' order: 5 words of bias and scale per 16 channels, then the weights.
    """
    layers = _layers(program)
    listing = npuc("dump", program, "--json").json["instructions"]
    behind = (each["fields"] for each in listing if each["index"] >= layers[layer]["instruction"])
    word = next(each for each in behind if "Zs" in each)  # words of addresses may come first
    words = sum(each["weight_words"] for each in layers[:layer]) + 5 * word["Zs"]
    image = bytearray((program / "weight.bin").read_bytes())
    image[BYTES * words] ^= 0x80
    (program / "weight.bin").write_bytes(image)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_flipped_weight_bit_is_found_in_its_layer_and_instruction(
    digits: Digits, copy: Path, tmp_path: Path, layer: int
) -> None:
    wrong = _layers(copy)[layer]
    _flip(copy, layer)
    options = ("--data", digits.few, "--allow-modified", "--bisect", "-o", tmp_path / "b", "--json")
    outcome = npuc("verify", digits.model, copy, *options)
    found = outcome.json["bisect"]
    assert outcome.code == 1 and found["kind"] == "difference"
    assert set(found["nodes"]) <= set(wrong["nodes"]) and found["expected"] != found["found"]
    assert found["element"][:2] == [0, 0]  # the first channel, whose weight was changed
    listing = npuc("dump", copy, "--allow-modified", "--json").json["instructions"]
    (entry,) = [each for each in listing if each["index"] == found["origin"]["instruction"]]
    assert set(entry["nodes"]) & set(wrong["nodes"]) and entry["text"] == found["origin"]["text"]


def test_the_reproduction_is_a_model_that_runs(digits: Digits, copy: Path, tmp_path: Path) -> None:
    _flip(copy, 1)
    folder = tmp_path / "b"
    text = npuc("verify", digits.model, copy, "--data", digits.few, "--allow-modified", "--bisect", "-o", folder)
    assert text.code == 1 and "first difference: layer" in text.out and "instruction" in text.out
    part, whole = onnx.load(folder / "layer.onnx"), onnx.load(digits.model)
    assert 0 < len(part.graph.node) < len(whole.graph.node)
    with np.load(folder / "input.npz") as inputs, np.load(folder / "sample.npz") as sample:
        assert [port.name for port in part.graph.input] == list(inputs) and len(list(sample)) == 1
    npuc(
        "compile", folder / "layer.onnx", "--target", "easynpu", "--calibration", folder / "input.npz",
        "-o", tmp_path / "layer.npu",
    ).done()  # fmt: skip
    npuc("verify", folder / "layer.onnx", tmp_path / "layer.npu", "--data", folder / "input.npz").done()
    again = ("verify", digits.model, copy, "--data", folder / "sample.npz", "--allow-modified")
    said = " ".join(map(str, (*again[:3], "--data", "sample.npz", "--allow-modified")))
    assert said in (folder / "reproduce.sh").read_text()
    assert npuc(*again).code == 1


def test_without_a_difference_the_largest_loss_is_named(digits: Digits, tmp_path: Path) -> None:
    asked = ("--data", digits.few, "--bisect", "-o", tmp_path / "b", "--json")
    outcome = npuc("verify", digits.model, digits.program, *asked)
    assert outcome.code == 0 and outcome.json["bisect"]["kind"] == "loss"
    assert outcome.json["bisect"]["entire_db"] > 0


def test_a_folder_with_content_is_not_overwritten(digits: Digits, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("mine")
    npuc("verify", digits.model, digits.program, "--data", digits.few, "--bisect", "-o", tmp_path / "b").refused(
        "E505"
    )
    assert [each.name for each in (tmp_path / "b").iterdir()] == ["mine"]


def test_of_a_program_with_host_regions_the_first_layer_that_differs_is_named(
    digits: Digits, tmp_path: Path
) -> None:
    program = tmp_path / "o.npu"
    options = ("--target", "easynpu", "--calibration", digits.few, "--deny", "MaxPool")
    npuc("compile", digits.model, *options, "-o", program).done()
    command = ("verify", digits.model, program, "--data", digits.few, "--allow-modified", "--bisect", "--json")
    assert npuc(*command, "-o", tmp_path / "a").json["bisect"]["kind"] == "loss"
    _flip(program / "npu" / "part_1", 0)
    found = npuc(*command, "-o", tmp_path / "b")
    assert found.code == 1 and found.json["bisect"]["kind"] == "loss"
    assert set(_layers(program / "npu" / "part_1")[0]["nodes"]) <= set(found.json["bisect"]["nodes"])
