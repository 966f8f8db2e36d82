"""`npuc dump`, `assemble` and `export`: the words and images of a program, out and in again."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from npuc import program
from npuc.reports.disassembly import Disassembly
from npuc.targets.easynpu.target import EASYNPU
from tests.cli.process import Digits, npuc


def words(program: Path) -> list[str]:
    """The instruction words, most significant digit first."""
    image = (program / "itcm.bin").read_bytes()
    return [image[at : at + 16][::-1].hex() for at in range(0, len(image), 16)]


def test_text_has_a_heading_a_segment_a_line_a_layer_and_number_word_and_fields_a_word(digits: Digits) -> None:
    """The network by hand: Conv 1 -> 16 channels of 8 x 8, in fmap words 0..63, to the end of 1,280 words."""
    lines = npuc("dump", digits.program).done().splitlines()
    numbered = [line.split() for line in lines if line and not line.startswith(";")]
    assert [line[:2] for line in numbered] == [[f"{at}:", word] for at, word in enumerate(words(digits.program))]
    assert lines[0] == "; segment 0"
    assert any(re.fullmatch(r";   load +1,024 bytes  fmap +words 0\.\.63  .*\[1x8x8\]", line) for line in lines)
    at = lines.index(next(line for line in lines if line.startswith("; n0_Conv, n1_Relu")))
    layer = r"; n0_Conv, n1_Relu: 1x8x8 -> 16x8x8, tile 2x2, [0-9,]+ cycles, fmap 0\.\.63 -> .*fmap 1216\.\.1279"
    assert re.fullmatch(layer, lines[at]), lines[at]
    assert " conv_relu.stored  Ph=1 Pw=1 y=2 x=2 " in lines[at + 1]


def test_a_dump_can_be_of_a_layer_or_a_segment(digits: Digits) -> None:
    def numbers(*options: str) -> list[int]:
        found = npuc("dump", digits.program, *options, "--json").json["instructions"]
        return [entry["index"] for entry in found]

    whole = npuc("dump", digits.program, "--json").json["instructions"]
    assert numbers("--layer", "n2_Conv") == [each["index"] for each in whole if "n2_Conv" in each["nodes"]] != []
    assert numbers("--segment", "0") == [each["index"] for each in whole]
    found = npuc("dump", digits.program, "--layer", "n0_Conv").done().splitlines()
    assert found[0] == "; segment 0" and found[-1].startswith("0:") and len(found) < 14
    assert "segments 0..0" in npuc("dump", digits.program, "--segment", "1").refused("E508")
    assert "n2_Conv" in npuc("dump", digits.program, "--layer", "n2_Conw").refused("E508")
    npuc("dump", "--layout", "--target", "easynpu", "--layer", "a").usage()


@pytest.mark.parametrize("width", [80, 120])
def test_lines_for_a_terminal_fit_and_still_assemble(digits: Digits, tmp_path: Path, width: int) -> None:
    loaded = program.load(digits.program)
    found = Disassembly.of(EASYNPU.listing(loaded), EASYNPU.outline(loaded))
    lines = [each.text for each in found.lines(width=width)]
    assert max(map(len, lines)) <= width and len(lines) > len(found.lines())
    (tmp_path / "listing").write_text("\n".join(lines))
    npuc("assemble", tmp_path / "listing", "-o", tmp_path / "o", "--images", digits.program).done()
    assert words(tmp_path / "o") == words(digits.program)


def test_json_has_words_fields_and_source_nodes(digits: Digits) -> None:
    report = npuc("dump", digits.program, "--json").json
    assert report == npuc("dump", digits.program, "--format", "json").json
    entries = report["instructions"]
    assert [entry["word"] for entry in entries] == words(digits.program)
    assert [entry["index"] for entry in entries] == list(range(len(entries)))
    assert entries[0]["fields"]["Co"] == 16 and entries[0]["nodes"] == ["n0_Conv", "n1_Relu"]


def test_csv_has_the_same_words(digits: Digits) -> None:
    rows = list(csv.DictReader(io.StringIO(npuc("dump", digits.program, "--format", "csv").done())))
    assert [row["word"] for row in rows] == words(digits.program)
    assert [row["text"] for row in rows] == [
        entry["text"] for entry in npuc("dump", digits.program, "--json").json["instructions"]
    ]


def test_raw_words_are_dumped_without_a_program(digits: Digits) -> None:
    entries = npuc("dump", digits.program / "itcm.bin", "--json").json["instructions"]
    assert [entry["word"] for entry in entries] == words(digits.program)
    assert all((entry["nodes"], entry["tensor"]) == ([], None) for entry in entries)


def test_a_word_that_is_no_instruction_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(bytes([0x3F, *14 * [0], 0x12]))
    (entry,) = npuc("dump", tmp_path / "raw.bin", "--json").json["instructions"]
    assert entry["word"] == f"12{'00' * 14}3f" and entry["word"] in entry["text"]


def test_a_file_that_holds_no_whole_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(bytes(17))
    assert "17 bytes" in npuc("dump", tmp_path / "raw.bin").refused("E504")


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small"])
def test_an_empty_file_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "words").write_bytes(b"")
    npuc("dump", tmp_path / "words", "--target", target).refused("E501")


def test_the_layout_covers_every_bit_of_a_word_in_three_formats() -> None:
    command = ("dump", "--layout", "--target", "easynpu")
    report = npuc(*command, "--json").json["words"]
    rows = list(csv.DictReader(io.StringIO(npuc(*command, "--format", "csv").done())))
    text = npuc(*command).done()
    for name, fields in report.items():
        assert sum(field["width"] for field in fields) == 128
        assert [row["field"] for row in rows if row["word"] == name] == [field["field"] for field in fields]
        assert f"{name}\n" in text
    assert {"bits": "31:28", "field": "Dw"}.items() <= next(
        f for f in report["Layer"] if f["field"] == "Dw"
    ).items()


def test_dump_needs_a_program_or_a_target(digits: Digits) -> None:
    assert "PATH" in npuc("dump").usage()
    assert "--target" in npuc("dump", "--layout").usage()
    assert "PATH" in npuc("dump", digits.program, "--layout", "--target", "easynpu").usage()


def test_an_assembled_dump_has_the_same_words_and_verifies(digits: Digits, tmp_path: Path) -> None:
    (tmp_path / "listing").write_text(npuc("dump", digits.program).done())
    output = tmp_path / "again.npu"
    outcome = npuc("assemble", tmp_path / "listing", "-o", output, "--images", digits.program, "--json")
    assert outcome.json == {"status": "ok", "instructions": len(words(output)), "output": str(output)}
    for path in digits.program.iterdir():
        assert (output / path.name).read_bytes() == path.read_bytes()
    npuc("verify", digits.model, output, "--data", digits.few).done()


@pytest.mark.parametrize("change", ["crlf", "bom", "comments", "blank lines", "no notes"])
def test_a_listing_may_be_edited_like_any_text(digits: Digits, tmp_path: Path, change: str) -> None:
    text = npuc("dump", digits.program).done()
    edited = {
        "crlf": text.replace("\n", "\r\n").encode(),
        "bom": text.encode("utf-8-sig"),
        "comments": f"; made by hand\n{text}".encode(),
        "blank lines": text.replace("\n", "\n\n").encode(),
        "no notes": "\n".join(line.partition(" ; ")[0] for line in text.splitlines()).encode(),
    }[change]
    (tmp_path / "listing").write_bytes(edited)
    npuc("assemble", tmp_path / "listing", "-o", tmp_path / "o", "--images", digits.program).done()
    assert words(tmp_path / "o") == words(digits.program)


def test_a_program_with_an_edited_word_is_sealed_anew_and_found_to_differ(digits: Digits, tmp_path: Path) -> None:
    text = npuc("dump", digits.program).done()
    (tmp_path / "listing").write_text(text.replace("conv_relu.stored", "conv.stored", 1))
    command = ("assemble", tmp_path / "listing", "-o", tmp_path / "o", "--images", digits.program)
    assert npuc(*command).done().endswith(f"instructions -> {tmp_path / 'o'}\n")
    outcome = npuc("verify", digits.model, tmp_path / "o", "--data", digits.few, "--json")
    assert outcome.json["status"] == "mismatch" and outcome.json["bit_exact"] is False
    assert outcome.json["layers"][0]["bit_exact"] is False


@pytest.mark.parametrize(("line", "reason"), [
    ("hello world", "hello"), ("conv Cq=1", "Cq"), ("conv Co=9999", "Co = 9999"), ("conv Co", "line 1"),
    ("\0", "line 1"), ("3: conv Cq=1", "Cq"), ("Ph=1", "Ph=1"),
])  # fmt: skip
def test_a_bad_line_is_refused_by_number(digits: Digits, tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "listing").write_text(f"{line}\n")
    outcome = npuc("assemble", tmp_path / "listing", "-o", tmp_path / "o", "--images", digits.program)
    message = outcome.refused("E504")
    assert "line 1" in message and reason in message and not (tmp_path / "o").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe\0", None])
def test_a_listing_that_is_no_text_is_refused(digits: Digits, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "listing").write_bytes(content)
    outcome = npuc("assemble", tmp_path / "listing", "-o", tmp_path / "o", "--images", digits.program)
    outcome.refused("E501" if content is None else "E504")


def test_an_assembled_program_does_not_replace_what_is_no_artefact(digits: Digits, tmp_path: Path) -> None:
    (tmp_path / "listing").write_text(npuc("dump", digits.program).done())
    (tmp_path / "notes").write_text("of somebody")
    command = ("assemble", tmp_path / "listing", "-o", tmp_path / "notes", "--images", digits.program)
    npuc(*command).refused("E505")
    npuc(*command, "--force").done()
    assert words(tmp_path / "notes") == words(digits.program)


def test_bin_export_is_the_images_and_a_map(digits: Digits, tmp_path: Path) -> None:
    outcome = npuc("export", digits.program, "--format", "bin", "-o", tmp_path / "ex", "--json")
    assert outcome.json == {
        "status": "ok",
        "files": ["itcm.bin", "map.json", "weight.bin"],
        "output": str(tmp_path / "ex"),
    }
    for name in ("itcm.bin", "weight.bin"):
        assert (tmp_path / "ex" / name).read_bytes() == (digits.program / name).read_bytes()


def test_readmemh_export_has_a_word_a_line_most_significant_digit_first(digits: Digits, tmp_path: Path) -> None:
    text = npuc("export", digits.program, "--format", "readmemh", "-o", tmp_path / "ex").done()
    assert "weight.hex" in text and " bytes" in text
    assert (tmp_path / "ex" / "itcm.hex").read_text().split() == words(digits.program)
    lines = (tmp_path / "ex" / "weight.hex").read_text().split()
    assert b"".join(bytes.fromhex(line)[::-1] for line in lines) == (digits.program / "weight.bin").read_bytes()


def test_the_map_says_where_inputs_and_outputs_lie(digits: Digits, tmp_path: Path) -> None:
    npuc("export", digits.program, "--format", "bin", "-o", tmp_path / "ex").done()
    described = json.loads((tmp_path / "ex" / "map.json").read_text())
    assert {"target", "machine", "steps", "placements", "word_bytes", "files"} <= described.keys()
    for place in described["placements"]:
        assert {"region", "address", "layout", "dtype", "shape", "scale", "direction"} <= place.keys()
    assert {place["direction"] for place in described["placements"]} == {"load", "store"}


def test_an_export_goes_to_a_new_folder_only(digits: Digits, tmp_path: Path) -> None:
    command = ("export", digits.program, "--format", "bin", "-o", tmp_path)
    npuc(*command).done()
    npuc(*command).refused("E505")
    npuc(*command[:-1], tmp_path / "map.json").refused("E505")


def test_formats_of_other_targets_are_usage_errors(digits: Digits, tmp_path: Path) -> None:
    assert "readmemh" in npuc("export", digits.program, "--format", "loadable", "-o", tmp_path / "ex").usage()
    command = ("export", digits.program, "--format", "bin", "--player", "sequencers", "-o", tmp_path / "ex")
    assert "nvdla-trace" in npuc(*command).usage()
