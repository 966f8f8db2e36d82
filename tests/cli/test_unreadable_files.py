"""Files that a command cannot read: the error names the file or line, and its help is about that file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from npuc.registry import target
from tests.cli.process import Digits, Outcome, npuc

AGAIN = "help: compile the model again"
"""What helps where npuc wrote the file, and nowhere else."""
RUBBISH = bytes(each * 37 % 251 for each in range(997))
HEX = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Case:
    """A file's content (None: a folder), the code, and what the message contains."""

    content: bytes | None
    code: str
    facts: tuple[str, ...]


LISTING, WORDS = "npuc dump OUT > LISTING", "give a file of words alone"
LISTINGS: Mapping[str, Case] = {
    "empty": Case(b"", "E504", ("no instructions", LISTING)),
    "comments": Case(b"; nothing\r\n", "E504", ("no instructions", LISTING)),
    "binary": Case(b"conv\n\xff\x80", "E504", ("line 2", "not UTF-8", LISTING)),
    "cut UTF-16": Case("conv\n".encode("utf-16")[:-1], "E504", ("not UTF-8", LISTING)),
    "another file": Case(b"; one\r\nhello world", "E504", ("line 2", "'hello'", "one of conv")),
    "form feed": Case(b"conv\f\nhello", "E504", ("line 2", "'hello'")),
    "no number": Case(b"conv Co=1_6", "E504", ("line 1", "'1_6'")),
    "digits of another script": Case("conv Co=\u0661".encode(), "E504", ("line 1", "40 digits")),
    "long": Case(b"x" * 100_000, "E504", ("line 1", "...xxx")),
    "folder": Case(None, "E501", ("directory", LISTING)),
}
RAW: Mapping[str, Case] = {
    "empty": Case(b"", "E501", ("no instructions",)),
    "text": Case(b"hello world\nfoo\n", "E501", ("line 1", "'hello'", WORDS)),
    "one digit less": Case(f"{HEX}\r\n\r\n{HEX[1:]}".encode(), "E501", ("line 3", "32 hexadecimal digits", WORDS)),
    "no digit": Case(f"{HEX}\n{HEX[1:]}g".encode("utf-16"), "E501", ("line 2", "32 hexadecimal digits", WORDS)),
    "placed": Case(f"@2\n{HEX}".encode(), "E501", ("line 1", "'@2'", WORDS)),
}
MACHINES: Mapping[str, Case] = {
    "binary": Case(b"a = 1\n\xff", "E305", ("line 2", "not UTF-8", "Machine files")),
    "another file": Case(b"name = 'a'\nhello world", "E305", ("line 2", "Machine files")),
    "folder": Case(None, "E305", ("directory", "Machine files")),
}
DUMPS: Mapping[str, Case] = {
    "a file": Case(b"", "E501", ("Not a directory", "the folder of the dumps", "input_int8.bin")),
    "an empty folder": Case(None, "E508", ("no dumps", "input_int8.bin")),
}
MODELS: Mapping[str, Case] = {
    "empty": Case(b"", "E102", ("is empty", "export or download")),
    "rubbish": Case(RUBBISH, "E102", ("export or download",)),
    "folder": Case(None, "E101", ("directory", "path of an .onnx file")),
}
FOLDERS: Mapping[str, Case] = {
    "a file": Case(b"", "E501", ("not a directory", "give the folder that npuc compile wrote")),
    "another folder": Case(None, "E501", ("manifest.json", "give the folder that npuc compile wrote")),
}


def at(tmp_path: Path, content: bytes | None) -> Path:
    """A file with this content, or a folder."""
    path = tmp_path / "given"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    return path


def expect(outcome: Outcome, case: Case, output: Path | None = None) -> None:
    message = outcome.refused(case.code)
    assert all(fact in message for fact in case.facts) and AGAIN not in message, message
    assert len(message) < 2000 and "Traceback" not in message
    assert output is None or not output.exists()


@pytest.mark.parametrize("case", LISTINGS.values(), ids=LISTINGS)
def test_a_listing(digits: Digits, tmp_path: Path, case: Case) -> None:
    output = tmp_path / "o"
    command = ("assemble", at(tmp_path, case.content), "--images", digits.program, "-o", output)
    expect(npuc(*command), case, output)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_listing_as_shells_and_editors_save_it(digits: Digits, tmp_path: Path, encoding: str) -> None:
    text = npuc("dump", digits.program).done().replace("\n", "\r\n")
    listing = at(tmp_path, text.encode(encoding))
    npuc("assemble", listing, "--images", digits.program, "-o", tmp_path / "o").done()
    assert (tmp_path / "o" / "itcm.bin").read_bytes() == (digits.program / "itcm.bin").read_bytes()


@pytest.mark.parametrize("machine", ["easynpu", "nvdla-small"])
@pytest.mark.parametrize("case", RAW.values(), ids=RAW)
def test_a_file_of_words(tmp_path: Path, machine: str, case: Case) -> None:
    expect(npuc("dump", at(tmp_path, case.content), "--target", machine), case)


@pytest.mark.parametrize(
    ("content", "fact"), [(RUBBISH, "997 bytes"), (b"\xff" * 16, "record 0"), (RUBBISH[:16], "record 0")]
)
def test_a_file_of_registers(tmp_path: Path, content: bytes, fact: str) -> None:
    expect(npuc("dump", at(tmp_path, content), "--target", "nvdla-small"), Case(content, "E502", (fact, WORDS)))


def test_a_file_for_a_target_without_words(tmp_path: Path) -> None:
    case = Case(b"gdma", "E501", ("no words", "give the folder that npuc compile wrote"))
    expect(npuc("dump", at(tmp_path, case.content), "--target", "bm1684"), case)


def test_a_loadable(tmp_path: Path) -> None:
    case = Case(b"\xff\xff\xff\xffNVDA" + RUBBISH, "E502", ("flatbuffer", "copy the loadable again"))
    expect(npuc("dump", at(tmp_path, case.content)), case)


@pytest.mark.parametrize("case", MACHINES.values(), ids=MACHINES)
def test_a_machine(digits: Digits, tmp_path: Path, case: Case) -> None:
    command = ("check", digits.model, "--target", "easynpu", "--machine", at(tmp_path, case.content))
    expect(npuc(*command), case)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_machine_as_editors_save_it(tmp_path: Path, encoding: str) -> None:
    path = at(tmp_path, "dram_mb_per_second = 77\r\n".encode(encoding))
    assert target("nvdla-small").machine_values(str(path))["dram_mb_per_second"] == 77


@pytest.mark.parametrize("case", DUMPS.values(), ids=DUMPS)
def test_dumps_of_hardware(digits: Digits, tmp_path: Path, case: Case) -> None:
    command = ("verify", digits.model, digits.program, "--data", digits.few, "--dump", at(tmp_path, case.content))
    expect(npuc(*command), case)


@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
def test_a_model_beside_its_program(digits: Digits, tmp_path: Path, case: Case) -> None:
    model = at(tmp_path, case.content)
    expect(npuc("verify", model, digits.program, "--data", digits.few), case)
    expect(npuc("report", digits.program, "--model", model, "-o", tmp_path / "o"), case, tmp_path / "o")


@pytest.mark.parametrize("case", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("command", [("explain", "{}", "x"), ("diff", "{}", "{}"), ("trace", "{}", "-o", "o")])
def test_a_program(tmp_path: Path, command: tuple[str, ...], case: Case) -> None:
    given = at(tmp_path, case.content)
    expect(npuc(*(each.replace("{}", str(given)) for each in command)), case)


@pytest.mark.parametrize(
    "command",
    [("assemble", "{}", "--images", "p", "-o", "o"), ("dump", "{}"), ("check", "{}", "--target", "easynpu")],
)
def test_a_file_beyond_the_memory_limit(digits: Digits, tmp_path: Path, command: tuple[str, ...]) -> None:
    given = tmp_path / "given"
    with given.open("wb") as file:
        file.truncate(1 << 40)
    places = {"{}": str(given), "p": str(digits.program), "o": str(tmp_path / "o")}
    case = Case(None, "E110", (f"'{given}' of 1,099,511,627,776 bytes", "--memory-limit"))
    expect(npuc(*(places.get(each, each) for each in command)), case, tmp_path / "o")
