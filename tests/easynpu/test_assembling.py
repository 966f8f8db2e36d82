"""Words of a listing in place of a program's own: refused where no machine runs them, reported as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from npuc.driver import compile_model
from npuc.errors import ArtefactError
from npuc.models import MODELS
from npuc.program import Program, as_loaded
from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.assembling import assemble_listing, expect_legal
from npuc.targets.easynpu.export.recounting import recount
from npuc.targets.easynpu.simulate.walk import segments_of

EASYNPU = target("easynpu")
MODELS_FOLDER = Path(__file__).resolve().parents[2] / "models"


@cache
def digits() -> Program:
    """A chain of six layers with a sum."""
    model, calibration = (MODELS_FOLDER / name for name in ("digits.onnx", "digits_calibration.npz"))
    return as_loaded(compile_model(Request(model, EASYNPU, Options(level="0"), [calibration]))[0])


def listing(program: Program) -> list[str]:
    """A line an instruction."""
    return [entry["text"] for entry in EASYNPU.listing(program)]


def written(program: Program, lines: Sequence[str]) -> Program:
    """The program with these lines."""
    return as_loaded(assemble_listing(program, "\n".join(lines).encode()))


def changed(number: int, old: str, new: str) -> list[str]:
    """The listing of digits with a text in one line replaced."""
    lines = listing(digits())
    assert old in lines[number]
    lines[number] = lines[number].replace(old, new)
    return lines


@pytest.mark.parametrize(("number", "old", "new", "cycles"), [
    (0, "y=2 x=2 yi=4 xi=4", "y=1 x=3 yi=3 xi=5", 17_392),
    (5, "y=4 x=4 yi=6 xi=6", "y=2 x=4 yi=4 xi=6", 17_381), (4, "x=2 yi=2 xi=4", "y=4 x=2 yi=8 xi=4", 17_411),
])  # fmt: skip
def test_another_tile_has_the_cycles_that_a_simulation_cycle_by_cycle_counted(
    number: int, old: str, new: str, cycles: int
) -> None:
    program = written(digits(), changed(number, old, new))
    report, before = program.manifest["report"], digits().manifest["report"]
    assert report["cycles"] == cycles != before["cycles"]
    assert report["cycles"] == sum(row["cycles"] for row in report["layers"])
    (row,) = (row for row in report["layers"] if row.get("tile_by_hand"))
    (was,) = (each for each in before["layers"] if each["name"] == row["name"])
    assert row["tile_runner_up"] == [*was["tile"], was["cycles"]] and row["tile"] != was["tile"]
    assert row["tile_candidates"] == was["tile_candidates"] and row["macs"] == was["macs"]
    assert report["proof"] == {"samples": 0, "bit_exact": None, "model": None}


def test_a_hexadecimal_word_that_was_edited_is_refused_and_that_of_an_edited_text_is_not() -> None:
    words = [f"{entry['index']}:  {entry['word']}  {entry['text']}" for entry in EASYNPU.listing(digits())]
    assert written(digits(), words).manifest == digits().manifest
    text = [words[0].replace("y=2 x=2 yi=4 xi=4", "y=1 x=3 yi=3 xi=5"), *words[1:]]
    assert written(digits(), text).manifest["report"]["cycles"] == 17_392
    with pytest.raises(ArtefactError, match="line 1: its hexadecimal word is not that of its text"):
        written(digits(), [words[0].replace("1144  ", "1145  "), *words[1:]])


def test_memories_are_those_of_the_new_words() -> None:
    lines = ["sto memory=1 base=64 row=8 pixel=1 group=1", *listing(digits())]
    lines[3] = "opb memory=1 base=64 row=8 pixel=1 group=1\n" + lines[3]
    moved = written(digits(), lines).manifest
    assert moved["report"]["memory"]["skip"]["peak_bytes"] == 2 * 1024
    assert moved["report"]["instructions"] == 10 and moved["isa"] == "extended"
    assert [entry["nodes"] for entry in moved["instructions"] if entry["mnemonic"] not in ("sto", "opb")] == [
        entry["nodes"] for entry in digits().manifest["instructions"]
    ]


@pytest.mark.parametrize(("number", "old", "new", "reason", "limit"), [
    (0, "yi=4 xi=4", "yi=3 xi=4", "y' x' are 3 x 4, the tile needs 4 x 4", "= 4"),
    (0, "yi=4 xi=4", "yi=5 xi=4", "y' x' are 5 x 4, the tile needs 4 x 4", "= 4"),
    (0, "yi=4 xi=4", "yi=4 xi=3", "y' x' are 4 x 3", "likewise 4"),
    (1, "y=4 x=8 yi=6 xi=10", "y=8 x=8 yi=10 xi=10", "100 entries", "ifmap_pad_entries = 64"),
    (6, "y=2 x=2 yi=5 xi=5", "y=8 x=8 yi=17 xi=17", "289 entries", "ifmap_pad_entries = 64"),
    (5, "Zs=2", "Zs=3", "Zs = 3 for 32", "Zs = 2"), (3, "Ci=16", "Ci=8", "Ci != Co", "Ci = Co = 16"),
    (4, "Sh=2", "Sh=0", "a stride of 0", "at least 1"),
    (2, "add.fused", "add.fused Ph=1", "pixel by pixel", "Ph = Pw = 0"),
    (7, "Ci=32", "Ci=64", "before they are loaded", None),
    (0, "Hi=8 Wi=8", "Hi=9 Wi=9", "before it is written", None),
    (7, "conv", "conv.fused", "ends within a chain", None),
])  # fmt: skip
def test_an_illegal_word_is_refused_with_its_line(
    number: int, old: str, new: str, reason: str, limit: str | None
) -> None:
    with pytest.raises(ArtefactError) as error:
        written(digits(), ["; a comment", *changed(number, old, new)])
    (problem,) = error.value.problems
    assert problem.code == "E504" and problem.remedy and reason in problem.reason
    assert f"line {number + 2}: instruction {number}:" in problem.reason
    assert limit is None or limit in (problem.limit or "")


@pytest.mark.parametrize(("lines", "reason"), [
    (["halt reserved=1"], "reserved is 1"), (["ctl flags=1"], "flags is 1"), (["word 0x3f"], "not an instruction"),
    (["relu"] * 260, "260 words"),
])  # fmt: skip
def test_words_that_no_machine_defines_are_refused(lines: list[str], reason: str) -> None:
    with pytest.raises(ArtefactError, match=reason) as error:
        written(digits(), lines)
    assert error.value.problems[0].code == "E504"


@pytest.mark.parametrize(("model", "machine"), [("residual_awkward", "default"), ("ds_cnn", "large")])
def test_the_compilers_own_words_are_reported_as_the_compiler_did(
    model: str, machine: str, tmp_path: Path
) -> None:
    import onnx

    onnx.save(MODELS[model](), tmp_path / "m.onnx")
    compiled = compile_model(Request(tmp_path / "m.onnx", EASYNPU, Options(machine=machine)))[0]
    program = as_loaded(compiled)
    report = program.manifest["report"]
    assert recount(program, program) == {**report, "proof": {"samples": 0, "bit_exact": None, "model": None}}
    expect_legal(program)
    assert sum(chain.cycles for _, chains in segments_of(program) for chain in chains) == report["cycles"]


def test_a_dump_of_the_same_words_is_the_same_program() -> None:
    same = assemble_listing(digits(), "\n".join(map(str, listing(digits()))).encode())
    assert same.manifest == digits().manifest and same.files == digits().files
