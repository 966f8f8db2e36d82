"""`npuc verify --dump` with .mem files: bytes of a machine's memory, laid out here as its document says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from npuc.ir import Array
from tests.cli.process import Digits, WriteModel, compiled, npuc

SAMPLES = 2
HIGH = {"n5_MaxPool": "fmap 1264..1279", "n9_Relu": "fmap 1272..1279"}
"""Maps of digits at the high end of the Fmap DTCM of 1,280 words."""
FUSED = "n2_Conv/int8"
"""What the next word of a chain takes without a memory between."""


def integer_network(digits: Digits, program: Path) -> dict[str, Array]:
    """The value of every layer of the integer network for each sample, from onnxruntime: (samples, 1, C, ...)."""
    run = ort.InferenceSession(str(program / "reference.onnx"))
    names = [layer["tensor"] for layer in json.loads((program / "graph.json").read_bytes())["layers"]]
    with np.load(digits.few) as archive:
        images = archive[next(iter(archive.files))][:SAMPLES].astype(np.float32)
    source = run.get_inputs()[0].name
    found = [run.run(names, {source: each[None]}) for each in images]
    return {name: np.stack([np.asarray(each[at]) for each in found]) for at, name in enumerate(names)}


def dump(folder: Path, tensor: str, samples: list[bytes]) -> Path:
    path = folder / f"{tensor.replace('/', '_')}.mem"
    path.write_bytes(b"".join(samples))
    return path


def verified(digits: Digits, program: Path, folder: Path) -> Any:
    options = ("--data", digits.few, "--samples", SAMPLES, "--dump", folder, "--json")
    return npuc("verify", digits.model, program, *options).json


def flipped(path: Path, where: int) -> None:
    data = bytearray(path.read_bytes())
    data[where] ^= 64
    path.write_bytes(data)


def cube(values: Array, place: Any, atom: int) -> bytes:
    """Feature Data Format: channel in atom, column, line, surface; all other bytes are of something else."""
    channels, height, width = values.shape
    surfaces, lines = (-(-channels // atom) - 1) * place["surface_stride"], (height - 1) * place["line_stride"]
    data = np.full(surfaces + lines + width * atom, 0x5A, np.uint8)
    lanes = [first + at for first, count in place["lanes"] for at in range(count)]
    for channel, row, column in np.ndindex(values.shape):
        surface, byte = divmod(lanes[channel], atom)
        at = surface * place["surface_stride"] + row * place["line_stride"] + column * atom + byte
        data[at] = values[channel, row, column].view(np.uint8)
    return data.tobytes()


@pytest.mark.parametrize(("target", "atom"), [("nvdla-small", 8), ("nvdla-full", 32)])
def test_nvdla_cubes(target: str, atom: int, digits: Digits, tmp_path: Path) -> None:
    program, folder = tmp_path / "o", tmp_path / "board"
    folder.mkdir()
    npuc("compile", digits.model, "--target", target, "--calibration", digits.few, "-o", program).done()
    values = integer_network(digits, program)
    operations = json.loads((program / "manifest.json").read_bytes())["operations"]
    results = {each["result"]["tensor"]: each["result"]["place"] for each in operations if each["result"]}
    for name, place in results.items():
        maps = [each.reshape(*each.shape[1:], *[1] * (4 - each.ndim)) for each in values[name]]
        last = dump(folder, name, [cube(each, place, atom) for each in maps])
    report = verified(digits, program, folder)
    assert report["status"] == "ok" and len(report["dumps"]) == len(results) > 4
    flipped(last, len(last.read_bytes()) // SAMPLES)
    found = verified(digits, program, folder)["difference"]
    assert (found["tensor"], found["sample"], found["element"][:2]) == (name, 1, [0, 0])
    assert found["origin"]["instruction"] > 0


def words(values: Array, *, mirrored: bool) -> bytes:
    """Words of 16 channels, pixel after pixel; at the high end of a DTCM each lies below the one before it."""
    channels, height, width = values.shape
    groups = -(-channels // 16)
    found = np.zeros((height, width, groups * 16), np.int8)
    found[..., :channels] = values.transpose(1, 2, 0)
    lines = found.reshape(-1, 16)
    return (lines[::-1] if mirrored else lines).tobytes()


def test_easynpu_words(digits: Digits, tmp_path: Path) -> None:
    """By the comments of the listing (tests hold them), the second and the fourth map lie at the high end."""
    listing = npuc("dump", digits.program).out
    for tensor, where in HIGH.items():
        (line,) = (each for each in listing.splitlines() if each.startswith("; ") and f"{tensor}:" in each)
        assert line.endswith(where)
    values = integer_network(digits, digits.program)
    for tensor in values.keys() - {FUSED}:
        each = values[tensor]
        maps = [sample.reshape(*sample.shape[1:], *[1] * (4 - sample.ndim)) for sample in each]
        dump(tmp_path, tensor, [words(one, mirrored=tensor.removesuffix("/int8") in HIGH) for one in maps])
    report = verified(digits, digits.program, tmp_path)
    assert report["status"] == "ok" and len(report["dumps"]) == len(values) - 1 > 4
    flipped(tmp_path / "n5_MaxPool_int8.mem", -1)
    found = verified(digits, digits.program, tmp_path)["difference"]
    assert (found["tensor"], found["sample"], found["element"]) == ("n5_MaxPool/int8", 1, [0, 15, 0, 0])


def four_images(values: Array, kind: str) -> bytes:
    """Words with the same element of four images, one of them here; unsigned integers stand 128 above."""
    bits = (values.astype(np.int16) + (128 if kind == "uint8" else 0)).astype(np.uint8)
    found = np.full((values.size, 4), 0x5A, np.uint8)
    found[:, 0] = bits.ravel()
    return found.tobytes()


def test_bm1684_words(digits: Digits, tmp_path: Path) -> None:
    program, folder = tmp_path / "o", tmp_path / "board"
    folder.mkdir()
    options = ("--target", "bm1684", "--precision", "int8", "--calibration", digits.few)
    npuc("compile", digits.model, *options, "-o", program).done()
    values = integer_network(digits, program)
    results = json.loads((program / "manifest.json").read_bytes())["results"]
    for each in results:
        last = dump(folder, each["tensor"], [four_images(one, each["dtype"]) for one in values[each["tensor"]]])
    report = verified(digits, program, folder)
    assert report["status"] == "ok" and len(report["dumps"]) == len(results) > 4
    flipped(last, 4 * 10 + 4 * 3)
    found = verified(digits, program, folder)["difference"]
    assert (found["sample"], found["element"]) == (1, [0, 3, 0, 0])


def test_a_dump_of_memory_of_another_size_says_what_lies_there(digits: Digits, tmp_path: Path) -> None:
    (tmp_path / "n7_Relu_int8.mem").write_bytes(bytes(1000))
    options = ("--data", digits.few, "--samples", SAMPLES, "--dump", tmp_path)
    message = npuc("verify", digits.model, digits.program, *options).refused("E402")
    assert "2 samples of 512 bytes: words 0..31 of the fmap DTCM" in message


def test_what_no_memory_holds_as_a_whole_is_refused(tmp_path: Path, write: WriteModel) -> None:
    """A map that the machine computes in strips, which the host puts together."""
    model = write(
        """g (float[1,16,96,96] x) => (float[1,16,96,96] y) { a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu (a)
        y = Conv <pads = [1, 1, 1, 1]> (b, w) }""",
        w=(16, 16, 3, 3),
    )
    compiled(model, tmp_path / "o").done()
    (tmp_path / "y_int8.mem").write_bytes(bytes(16 * 96 * 96))
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 16, 96, 96), np.float32))
    options = ("--data", tmp_path / "x.npz", "--dump", tmp_path)
    message = npuc("verify", model, tmp_path / "o", *options).refused("E508")
    assert "never holds the whole tensor" in message and ".bin or .npy" in message
