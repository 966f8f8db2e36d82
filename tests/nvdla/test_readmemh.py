"""`npuc export --format bin` and `readmemh` of NVDLA's programs: a test bench reads what the simulator reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from npuc.program import Program
from npuc.storage import readmemh
from npuc.target import target
from tests.cli.process import npuc
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights


def memory_of(text: str, word_bytes: int, size: int) -> bytes:
    """What $readmemh makes of a file: IEEE 1800, 21.4."""
    memory, at = bytearray(size), 0
    for each in text.split():
        if each.startswith("@"):
            at = int(each[1:], 16)
            continue
        memory[at * word_bytes : (at + 1) * word_bytes] = int(each, 16).to_bytes(word_bytes, "little")
        at += 1
    return bytes(memory)


def program_of(name: str, folder: Path) -> Program:
    nodes = [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Conv", "a v", "y")]
    constants = {"w": weights(5, 3, 3, 3), "v": weights(7, 5, 1, 1)}
    return compiled(network(nodes, (1, 3, 6, 6), constants), folder, name)[2]


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-full"])
def test_registers_and_memory_are_those_of_the_program(name: str, tmp_path: Path) -> None:
    program = program_of(name, tmp_path)
    files = target(name).export(program, "readmemh")
    described, registers = json.loads(files["map.json"]), program.files["registers.bin"]
    assert memory_of(files["registers.hex"].decode(), 16, len(registers)) == registers
    dram = program.manifest["dram"]
    wanted = np.zeros(dram["bytes"], np.uint8)
    for image in dram["images"]:
        data = np.frombuffer(program.files[image["file"]], np.uint8)
        wanted[image["address"] - dram["base"] :][: len(data)] = data
    assert wanted.any() and described["dram"]["word_bytes"] == (8 if name == "nvdla-small" else 32)
    assert memory_of(files["dram.hex"].decode(), described["dram"]["word_bytes"], wanted.size) == wanted.tobytes()


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-full"])
def test_bin_export_says_where_its_images_go(name: str, tmp_path: Path) -> None:
    program = program_of(name, tmp_path)
    binary, text = (target(name).export(program, form) for form in ("bin", "readmemh"))
    described, as_text = json.loads(binary["map.json"]), json.loads(text["map.json"])
    assert binary[described["registers"]["file"]] == program.files["registers.bin"]
    assert described["steps"] == as_text["steps"]
    memory = bytearray(described["dram"]["bytes"])
    for image in described["dram"]["images"]:
        at = image["address"] - described["dram"]["base"]
        memory[at : at + len(binary[image["file"]])] = binary[image["file"]]
    wanted = memory_of(text["dram.hex"].decode(), as_text["dram"]["word_bytes"], as_text["dram"]["bytes"])
    assert memory == wanted and any(wanted)


def test_registers_are_listed_without_their_program(tmp_path: Path) -> None:
    program = program_of("nvdla-small", tmp_path)
    hexadecimal, raw = tmp_path / "r.hex", tmp_path / "registers.bin"
    hexadecimal.write_bytes(target("nvdla-small").export(program, "readmemh")["registers.hex"])
    raw.write_bytes(program.files["registers.bin"])
    listed = [npuc("dump", each, "--target", "nvdla-small", "--json").json for each in (hexadecimal, raw)]
    texts = [entry["text"] for entry in listed[0]["instructions"]]
    assert listed[0] == listed[1]
    for each in (hexadecimal, raw):  # which machine's they are does not stand in them
        assert "--target nvdla-small" in npuc("dump", each).usage()
    assert texts == [entry["text"] for entry in target("nvdla-small").listing(program)]
    raw.write_bytes(raw.read_bytes()[:-1])
    assert "records of 16 bytes" in npuc("dump", raw, "--target", "nvdla-small").refused("E502")
    hexadecimal.write_text("@2\n" + "0" * 32)
    npuc("dump", hexadecimal, "--target", "nvdla-small").refused("E501")


def test_images_that_share_a_word_are_one() -> None:
    text = readmemh.memory_text([(6, b"\5\6\7"), (1, b"\1\2"), (64, b"\x08")], 4).decode()
    assert text.count("@") == 2
    assert memory_of(text, 4, 68) == b"\0\1\2\0\0\0\5\6\7\0\0\0" + bytes(52) + b"\x08\0\0\0"
