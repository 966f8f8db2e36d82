"""Machine descriptions that no EasyNPU can have, and memories that a network does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.process import Digits, Outcome, compiled, npuc

On = Callable[..., Outcome]


@pytest.fixture
def on(digits: Digits, tmp_path: Path) -> On:
    """Compiles digits for a machine given by name, or as the text of a file."""

    def compile_on(name: str | None, *options: str, text: str | bytes = "") -> Outcome:
        file = tmp_path / "m.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        machine = file if name is None else name
        return compiled(digits.model, tmp_path / "o", "--machine", machine, "--calibration", digits.few, *options)

    return compile_on


def verifies(digits: Digits, tmp_path: Path) -> bool:
    return npuc("verify", digits.model, tmp_path / "o", "--data", digits.few).code == 0


@pytest.mark.parametrize(("text", "facts"), [
    (b"= =", ["cannot be read", "TOML"]), (b"\xff\xfe\0", ["cannot be read"]),
    (b"pes = 16\npes = 16", ["cannot be read"]),
    (b"fmap_word = 1", ["unknown parameter 'fmap_word'", "fmap_words"]),
    (b"[memories]\nfmap = 1", ["unknown parameter 'memories'"]),
    (b"fmap_words = 'many'", ["fmap_words = 'many'", "type int"]),
    (b"fmap_words = 1.5", ["fmap_words = 1.5", "type int"]),
    (b"fmap_words = true", ["fmap_words = True", "type int"]), (b"fmap_words = 1979-05-27", ["type int"]),
    (b"fmap_words = 0", ["fmap_words = 0", "1.."]), (b"fmap_words = -1", ["fmap_words = -1", "1.."]),
    (b"fmap_words = 99999999999", ["24-bit"]), (b"pes = 8", ["pes = 8", "16"]),
    (b"weight_pad_entries = 257", ["1..256"]), (b"name = 5", ["type str"]),
    (b"psum_write_first = 1", ["type bool"]), (b"ifmap_pad_sets = 3", ["ifmap_pad_sets = 3", "1 or 2"]),
    (b"ifmap_pad_sets = 0", ["ifmap_pad_sets = 0", "1.."]),
])  # fmt: skip
def test_a_bad_description_gives_one_clear_block(
    digits: Digits, on: On, tmp_path: Path, text: bytes, facts: list[str]
) -> None:
    message = on(None, text=text).refused("E305")
    assert "m.toml" in message and all(fact in message for fact in facts), message
    checked = npuc("check", digits.model, "--target", "easynpu", "--machine", tmp_path / "m.toml")
    assert checked.refused("E305") == message


@pytest.mark.parametrize("name", ["", ".", "nowhere.toml", "nowhere/m.toml"])
def test_a_machine_that_is_neither_shipped_nor_a_file_is_refused(on: On, name: str) -> None:
    assert "default, author, document, large, or a .toml file" in on(name).refused("E305")


MEMORIES = ("fmap_words", "skip_words", "weight_words", "itcm_words")
PADS = ("ifmap_pad_entries", "psum_entries", "weight_pad_entries")


@pytest.mark.parametrize("parameter", [*MEMORIES, *PADS])
def test_a_memory_that_is_too_small_is_named_or_the_program_verifies(
    digits: Digits, on: On, tmp_path: Path, parameter: str
) -> None:
    outcome = on(None, "--json", text=f"{parameter} = 1\n")
    if outcome.code == 0:
        assert verifies(digits, tmp_path)
        return
    for error in outcome.json["errors"]:
        assert error["code"] == ("E302" if parameter in MEMORIES else "E303")
        assert error["node"] and f"{parameter} = 1" in error["limit"]
        assert parameter in error["remedy"]


def test_shipped_machines_and_files_work_and_are_named_in_the_report(
    digits: Digits, on: On, tmp_path: Path
) -> None:
    text = 'fmap_words = 4096\nname = "mine"\n'
    shipped = [(name, name) for name in ("default", "author", "document", "large")]
    for name, called in (*shipped, (None, "mine")):
        assert on(name, "--json", text=text).json["machine"] == called
        assert verifies(digits, tmp_path)


def test_an_empty_description_is_the_default_machine_by_another_name(on: On) -> None:
    assert on(None, "--json").json == {**on("default", "--json").json, "machine": "m"}


def test_memories_of_the_largest_size_work(digits: Digits, on: On, tmp_path: Path) -> None:
    on(None, text="".join(f"{name}_words = {1 << 24}\n" for name in ("fmap", "skip", "weight"))).done()
    assert verifies(digits, tmp_path)
