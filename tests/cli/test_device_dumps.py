"""`npuc verify --dump FOLDER`: what hardware computed beside the integer network, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from tests.cli.process import Digits, npuc

SAMPLES = 2


@pytest.fixture(scope="module")
def board(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a board that computes as it should would give: onnxruntime's values of the integer network."""
    folder = tmp_path_factory.mktemp("board")
    run = ort.InferenceSession(str(digits.program / "reference.onnx"))
    graph = json.loads((digits.program / "graph.json").read_bytes())
    with np.load(digits.few) as archive:
        images = archive[next(iter(archive.files))][:SAMPLES].astype(np.float32)
    names = [layer["tensor"] for layer in graph["layers"]]
    for name in names:
        values = np.stack(
            [np.asarray(run.run([name], {run.get_inputs()[0].name: each[None]})[0]) for each in images]
        )
        (folder / f"{name.replace('/', '_')}.bin").write_bytes(values.tobytes())
    return folder


def verified(digits: Digits, folder: Path, *options: str) -> tuple[str, ...]:
    return ("verify", str(digits.model), str(digits.program), "--data", str(digits.few),
            "--samples", str(SAMPLES), "--dump", str(folder), *options)  # fmt: skip


def test_dumps_of_a_board_that_computes_as_it_should_agree(digits: Digits, board: Path) -> None:
    report = npuc(*verified(digits, board, "--json")).json
    assert (report["status"], report["difference"], report["samples"]) == ("ok", None, SAMPLES)
    assert {row["differing"] for row in report["dumps"]} == {0} and len(report["dumps"]) > 4
    assert "verified" in npuc(*verified(digits, board)).done()


def test_a_flipped_bit_is_found_by_layer_element_and_instruction(
    digits: Digits, board: Path, tmp_path: Path
) -> None:
    """Bit 6 of n4_Relu's element [0, 3, 5, 7] in the second sample; a layer behind it differs as well."""
    for path in board.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    values = np.fromfile(tmp_path / "n4_Relu_int8.bin", np.int8).reshape(SAMPLES, 1, 16, 8, 8)
    right = int(values[1, 0, 3, 5, 7])
    values[1, 0, 3, 5, 7] ^= 64
    np.save(tmp_path / "n4_Relu_int8.npy", values)
    (tmp_path / "n4_Relu_int8.bin").unlink()
    later = np.fromfile(tmp_path / "n9_Relu_int8.bin", np.int8)
    (tmp_path / "n9_Relu_int8.bin").write_bytes((later ^ 1).tobytes())
    outcome = npuc(*verified(digits, tmp_path, "--json"))
    found = outcome.json["difference"]
    assert outcome.json["status"] == "mismatch" and outcome.code == 1
    assert (found["tensor"], found["sample"], found["element"]) == ("n4_Relu/int8", 1, [0, 3, 5, 7])
    assert (found["expected"], found["found"], found["differing"]) == (right, right ^ 64, 1)
    listing = npuc("dump", digits.program, "--json").json["instructions"]
    (word,) = (each for each in listing if each["tensor"] == "n4_Relu/int8")
    assert found["origin"]["instruction"] == word["index"] and found["origin"]["text"] == word["text"]
    text = npuc(*verified(digits, tmp_path)).out
    assert "tensor n4_Relu/int8[0, 3, 5, 7], sample 1" in text and f"instruction {word['index']}" in text


def test_a_dump_that_is_none_of_the_program_s_is_refused(digits: Digits, board: Path, tmp_path: Path) -> None:
    assert "input_int8.bin" in npuc(*verified(digits, tmp_path)).refused("E508")
    npuc(*verified(digits, tmp_path / "none")).refused("E501")
    (tmp_path / "n4_Relu_int9.bin").write_bytes(b"")
    assert "Did you mean 'n4_Relu_int8'" in npuc(*verified(digits, tmp_path)).refused("E508")
    (tmp_path / "n4_Relu_int9.bin").rename(tmp_path / "n4_Relu_int8.bin")
    assert "2048 bytes" in npuc(*verified(digits, tmp_path)).refused("E402")
    (tmp_path / "n4_Relu_int8.bin").rename(tmp_path / "n4_Relu_int8.npy")
    npuc(*verified(digits, tmp_path)).refused("E401")
    header = b"{'descr': '|i1', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    (tmp_path / "n4_Relu_int8.npy").write_bytes(b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header + b"12")
    npuc(*verified(digits, tmp_path)).refused("E401")
    npuc(*verified(digits, board, "--bisect")).usage()
