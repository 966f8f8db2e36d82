"""`npuc export --format c`: its files, their bytes, and names that C could stumble over."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from npuc import program, running
from npuc.models.digits import FOLDER
from npuc.program import Program
from npuc.samples import loading as data
from npuc.target import Options, Request
from npuc.targets.easynpu.machine.isa import WORD_BYTES
from tests.cli.process import npuc
from tests.compiled import compilation
from tests.easynpu_c import compiling
from tests.easynpu_c.compiling import EASYNPU

FILES = {
    "Makefile", "README.md", "map.json", "npuc_driver.c", "npuc_driver.h", "npuc_operators.c",
    "npuc_operators.h", "npuc_program.c", "npuc_program.h", "test/main.c", "test/npuc_array.c",
    "test/npuc_array.h", "test/npuc_model.c", "test/npuc_model.h", "test/npuc_reshape.c",
}  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    model, calibration = FOLDER / "digits.onnx", FOLDER / "digits_calibration.npz"
    program.save(
        compilation(Request(model, EASYNPU, Options(level="0"), [calibration])).program,
        folder / "digits.npu",
    )
    return folder / "digits.npu"


def test_the_command_writes_program_driver_model_and_map(digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    report = npuc("export", digits, "--format", "c", "-o", folder, "--json").json
    assert report == {"status": "ok", "files": sorted(FILES), "output": str(folder)}
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == FILES
    described = json.loads((folder / "map.json").read_bytes())
    assert described["files"] == {"itcm": "npuc_program.c", "weight": "npuc_program.c"}
    assert described["steps"] == json.loads((digits / "manifest.json").read_bytes())["steps"]


def test_equal_programs_give_equal_bytes_wherever_they_lie(digits: Path, tmp_path: Path) -> None:
    first = EASYNPU.export(program.load(digits), "c")
    digits.rename(moved := tmp_path / "elsewhere.npu")
    try:
        assert EASYNPU.export(program.load(moved), "c") == first
    finally:
        moved.rename(digits)
    assert not any(str(tmp_path).encode() in text or b"digits.npu" in text for text in first.values())


def test_every_word_of_the_images_stands_in_the_source(digits: Path) -> None:
    loaded = program.load(digits)
    text = EASYNPU.export(loaded, "c")["npuc_program.c"].decode()
    for name, array in (("itcm.bin", "npuc_itcm"), ("weight.bin", "npuc_weight")):
        body = text.split(f"const struct npuc_word {array}[] = {{\n")[1].split("};\n")[0]
        written = bytes(
            int(each, 16) for each in body.replace("{", "").replace("}", "").split(",") if each.strip()
        )
        assert written == loaded.files[name]
        assert len(body.splitlines()) == len(loaded.files[name]) // WORD_BYTES


def test_what_firmware_must_provide_is_in_the_header_and_the_readme(digits: Path) -> None:
    files = EASYNPU.export(program.load(digits), "c")
    header, readme = files["npuc_program.h"].decode(), files["README.md"].decode()
    for line in ("NPUC_INPUT_BYTES 256", "NPUC_OUTPUT_BYTES 40", "NPUC_FMAP_WORDS 1280", "NPUC_PSUM_ENTRIES 64"):
        assert f"#define {line}\n" in header
    assert "$" not in readme
    assert "| 0 | `input` | float32 | [1, 1, 8, 8] | 256 |" in readme


def renamed(loaded: Program, names: dict[str, str]) -> Program:
    """The program with other tensor names."""
    text = json.dumps(loaded.manifest)
    for old, new in names.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    return Program(json.loads(text), loaded.files)


def test_names_that_c_could_stumble_over_stay_names(digits: Path, tmp_path: Path) -> None:
    names = {"input": '*/ "in" \\ ??/ é\n%s', "n11_Gemm": "//out*/\\", "input/int8": "a */ int x; /*"}
    found = renamed(program.load(digits), names)
    binary = compiling.exported(found, tmp_path / "c")
    samples = data.load([FOLDER / "digits_test.npz"], running.program_inputs(found)).first(4)
    expected = EASYNPU.runner(found)(samples.inputs)["//out*/\\"]
    np.testing.assert_array_equal(compiling.run(binary, found, samples.inputs)["//out*/\\"], expected)


@pytest.fixture(scope="module")
def broken(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test executable of a program whose first word is not an instruction."""
    loaded = program.load(digits)
    changed = Program(loaded.manifest, {**loaded.files, "itcm.bin": b"\x03" + loaded.files["itcm.bin"][1:]})
    return compiling.exported(changed, tmp_path_factory.mktemp("broken") / "c")


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (256, "the machine model stopped: an opcode is not defined\n"),
        (100, "the last sample has 100 of 256 bytes\n"),
    ],
)
def test_the_test_ends_with_a_reason(size: int, reason: str, broken: Path, tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(bytes(size))
    command = [broken, tmp_path / "in.bin", tmp_path / "out.bin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, reason)
    assert (tmp_path / "out.bin").read_bytes() == b""


CHECK = r"""
#include <stdio.h>
#include "npuc_program.h"

static const long *numbers;

/* Registers 4 and on as the command line gives them; the bus fails where a value is negative. */
static int given(uint32_t number, uint32_t *value)
{
    if (number < 4 || number > 14 || numbers[number - 4] < 0) {
        return 77;
    }
    *value = (uint32_t)numbers[number - 4];
    return 0;
}

int main(void)
{
    long values[11];
    unsigned i;

    for (i = 0; i < 11; i++) {
        if (scanf("%ld", &values[i]) != 1) {
            return 1;
        }
    }
    numbers = values;
    printf("%d\n", npuc_check(&npuc_program, given));
    return 0;
}
"""
DEFAULT = [1, 0xFF, 1, 64, 64, 16, 64, 1280, 1280, 1536, 256]
"""What docs/easynpu-rtl.md says of the default machine's registers 4 to 14."""


@pytest.fixture(scope="module")
def check(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """npuc_check of the digits program, on registers from stdin."""
    folder = tmp_path_factory.mktemp("check") / "c"
    program.save_files(EASYNPU.export(program.load(digits), "c"), folder)
    (folder / "check.c").write_text(CHECK, encoding="ascii")
    model = ["test/npuc_model.c", "test/npuc_array.c", "test/npuc_reshape.c"]
    sources = ["check.c", "npuc_program.c", "npuc_driver.c", "npuc_operators.c", *model]
    return compiling.build(folder, sources, compiling.careful_flags())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0),
        ({6: 4, 7: 128, 8: 128, 9: 32, 10: 80, 12: 4096, 13: 4096, 14: 512}, 0),  # more of all that may be more
        ({5: 0}, 0),  # the program has no words beyond the document's
        ({4: 2}, -4100),
        ({4: 0}, -4100),  # no core at all
        *(({number: DEFAULT[number - 4] - 1}, -4096 - number) for number in range(6, 15)),
        ({11: 1281}, -4107),  # the other end of the Fmap DTCM lies elsewhere
        ({8: -1}, 77),  # the bus fails
    ],
)
def test_the_driver_refuses_a_machine_that_the_program_is_not_for(
    changes: dict[int, int], expected: int, check: Path
) -> None:
    values = [changes.get(number, value) for number, value in enumerate(DEFAULT, start=4)]
    given = " ".join(map(str, values))
    done = subprocess.run([check], input=given, capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected


def test_a_program_demands_the_words_it_has_beyond_the_document(digits: Path) -> None:
    loaded = program.load(digits)
    words = bytes([0xC0]) + bytes(15) + bytes([0xC4]) + bytes(15) + bytes([0x45]) + bytes(15)
    more = Program(loaded.manifest, {**loaded.files, "itcm.bin": words + bytes([0xFF]) + bytes(15)})
    text = EASYNPU.export(more, "c")["npuc_program.c"].decode()
    assert "{5, NPUC_ALL_BITS, 113} /* words */" in text  # src 1, ctl 16, halt 32, dwconv_relu 64 (stored here)
