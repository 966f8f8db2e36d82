"""`npuc dump OUT --image NAME`: the bytes of an image beside what they hold."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from npuc.reports.disassembly import image_rows
from npuc.view import MemoryAnnotation
from tests.cli.process import SYNTHETIC, Digits, WriteModel, npuc

CONV = """<ir_version: 8, opset_import: ["": 17]> g (float[1,20,6,6] x) => (float[1,24,6,6] y) {
    y = Conv <kernel_shape = [2, 2], pads = [0, 0, 1, 1]> (x, w, b)
}"""


@pytest.fixture(scope="module")
def programs(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Digits for a target of each kind."""
    folder = tmp_path_factory.mktemp("programs")
    for target in ("nvdla-small", "bm1684"):
        options = ("--target", target, "-o", folder / target, "--calibration", digits.few)
        npuc("compile", digits.model, *options).done()
    return {"easynpu": digits.program, "nvdla-small": folder / "nvdla-small", "bm1684": folder / "bm1684"}


@pytest.mark.parametrize(
    ("target", "image"),
    [
        ("easynpu", "itcm.bin"), ("easynpu", "weight.bin"), ("nvdla-small", "registers.bin"),
        ("nvdla-small", "weights.bin"), ("bm1684", "weights.bin"), ("bm1684", "calls.txt"),
    ],
)  # fmt: skip
def test_every_byte_is_shown_once_in_order(programs: dict[str, Path], target: str, image: str) -> None:
    data = (programs[target] / image).read_bytes()
    report = npuc("dump", programs[target], "--image", image, "--json").json
    assert (report["image"], report["bytes"]) == (image, len(data))
    assert b"".join(bytes.fromhex(row["hex"]) for row in report["rows"]) == data
    at = 0
    for row in report["rows"]:
        assert row["address"] == at and 0 < len(row["hex"]) <= 32
        at += len(row["hex"]) // 2
    lines = npuc("dump", programs[target], "--image", image).done().splitlines()
    assert [line[:8] for line in lines] == [f"{row['address']:08x}" for row in report["rows"]]
    listed = npuc("dump", programs[target], "--image", image, "--format", "csv").done()
    assert [row["hex"] for row in csv.DictReader(listed.splitlines())] == [row["hex"] for row in report["rows"]]


def test_a_weight_of_easynpu_stands_where_the_view_says(write: WriteModel, tmp_path: Path) -> None:
    model = parser.parse_model(CONV)
    weights, bias = np.zeros((24, 20, 2, 2), np.float32), np.zeros(24, np.float32)
    weights[18, 7, 1, 0] = 1.0
    for name, values in (("w", weights), ("b", bias)):
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    npuc("compile", *SYNTHETIC, write(model), "--target", "easynpu", "-o", tmp_path / "o").done()
    found = npuc("dump", tmp_path / "o", "--image", "weight", "--json").json["rows"]
    held = {row["what"].partition(": ")[2]: bytes.fromhex(row["hex"]) for row in found}
    # two groups of 16 output channels: 5 words each of bias and shift, then 20 inputs x 4 taps x 2 groups
    assert len(found) == len(held) == 10 + 160
    taken = {what: data for what, data in held.items() if what.startswith("weights") and any(data)}
    ((what, data),) = taken.items()
    assert what == "weights of input 7, tap (1, 0), for channels 16..23"
    assert [lane for lane in range(16) if data[lane]] == [2]  # channel 18
    assert "shift of channels 0..15" in held and "bias byte 3 of channels 16..23" in held


def test_the_instruction_memory_is_shown_with_its_listing(digits: Digits) -> None:
    found = npuc("dump", digits.program, "--image", "itcm", "--json").json["rows"]
    listed = npuc("dump", digits.program, "--json").json["instructions"]
    assert [(row["what"], row["nodes"]) for row in found] == [(each["text"], each["nodes"]) for each in listed]
    assert [bytes.fromhex(row["hex"])[::-1].hex() for row in found] == [each["word"] for each in listed]


@pytest.mark.parametrize(("target", "image"), [("easynpu", "weight.bin"), ("nvdla-small", "weights.bin")])
def test_every_layer_with_weights_is_named(
    digits: Digits, programs: dict[str, Path], target: str, image: str
) -> None:
    weighted = {node.name for node in onnx.load(digits.model).graph.node if node.op_type in ("Conv", "Gemm")}
    found = npuc("dump", programs[target], "--image", image, "--json").json["rows"]
    assert weighted and weighted <= {node for row in found for node in row["nodes"]}


def test_what_bm1684_fetches_starts_where_its_kernel_says(programs: dict[str, Path]) -> None:
    table = (programs["bm1684"] / "calls.txt").read_text()
    fetched = {int(offset) for offset in re.findall(r"\$0\+(\d+)", table)}
    found = npuc("dump", programs["bm1684"], "--image", "weights", "--json").json["rows"]
    starts = [
        row["address"]
        for before, row in zip([None, *found[:-1]], found, strict=True)
        if before is None or before["what"] != row["what"]
    ]
    assert fetched and fetched <= set(starts)


def test_rows_end_where_something_else_begins() -> None:
    held = [
        MemoryAnnotation(20, "b", ("n",)),
        MemoryAnnotation(4, "a"),
        MemoryAnnotation(20, "c", ("m", "n")),
        MemoryAnnotation(99, "outside"),
    ]
    found = image_rows(bytes(range(24)), held)
    assert [(row["address"], len(row["hex"]) // 2, row["what"], row["nodes"]) for row in found] == [
        (0, 4, None, []), (4, 16, "a", []), (20, 4, "b; c", ["n", "m"]),
    ]  # fmt: skip


def test_what_is_no_image_is_refused(digits: Digits, tmp_path: Path) -> None:
    message = npuc("dump", digits.program, "--image", "wieght.bin").refused("E508")
    assert "Did you mean 'weight.bin'?" in message and "itcm.bin" in message
    npuc("dump", digits.program, "--image", "reference.onnx").refused("E508")
    npuc("dump", digits.program / "itcm.bin", "--image", "itcm").refused("E501")
    npuc("dump", "--image", "itcm").usage()
    npuc("dump", "--layout", "--target", "easynpu", "--image", "itcm").usage()


def test_bm1684_s_calls_name_their_tensors_and_layers(programs: dict[str, Path]) -> None:
    """The first block of digits by hand: conv and ReLU of n1_Relu, then conv and the addition of n1_Relu to it."""
    lines = npuc("dump", programs["bm1684"]).done().splitlines()
    assert "; n2_Conv, n3_Add, n4_Relu -> n4_Relu [1x16x8x8], " in "\n".join(lines)
    notes = {
        line.split("okk_")[1].split("(")[0]: line.partition(" ; ")[2] for line in reversed(lines) if "okk_" in line
    }
    assert notes["bdc_conv2d"] == "n1_Relu <- rows, n1_Relu/weights, n1_Relu/weights+0x48"
    assert notes["bdc_add"] == "n4_Relu <- n4_Relu, n1_Relu"
    assert notes["gdma_32bit_cpy_L2S"] == "n11_Gemm <- n11_Gemm"
