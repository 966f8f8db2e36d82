"""Tables, hints and progress: what a terminal shows and a pipe does not."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.text.terminal import CLEAR, as_json, closest, count, fold, page, progress, table

cells = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text("ab é", max_size=9))


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    text = table(("op", "cycles", "share"), [("conv", 12, 0.5), ("add", 3456, None)])
    assert text.splitlines() == ["op    cycles  share", "conv      12  0.500", "add    3,456      -"]


def test_a_column_of_flags_is_words() -> None:
    assert table(("exact",), [(True,), (False,)]).splitlines() == ["exact", "yes", "no"]


def test_large_numbers_lose_their_decimals_before_their_digits() -> None:
    assert table(("n",), [(99.9994,), (12345.678,)]).splitlines() == ["       n", "  99.999", "12,345.7"]


def test_a_table_without_rows_is_its_header() -> None:
    assert table(("layer", "op"), []) == "layer  op"


@given(st.lists(st.tuples(cells, cells), max_size=5))
def test_every_row_is_one_line_without_trailing_spaces(rows: list[tuple[object, object]]) -> None:
    lines = table(("a", "b"), rows).split("\n")
    assert len(lines) == len(rows) + 1
    assert all(line == line.rstrip() for line in lines)


@given(st.lists(st.tuples(cells, cells, st.text("ab é", max_size=60)), max_size=5), st.integers(1, 60))
def test_a_narrow_table_breaks_between_words_alone(rows: list[tuple[object, ...]], width: int) -> None:
    """Every line fits or is a single word; no word of the wide table is broken or lost."""
    wide, narrow = table(("x", "y", "z w"), rows), table(("x", "y", "z w"), rows, width)
    longest = max(map(len, re.split(r"\s+", wide)))
    assert all(len(line) <= max(width, longest + len("  z w: ") + 4) for line in narrow.split("\n"))
    if narrow.startswith("x "):
        assert all(len(line) <= width for line in narrow.split("\n"))
    words = [each for row in rows for cell in row for each in table(("",), [(cell,)]).split()]
    assert not Counter(words) - Counter(re.split(r"\s+", narrow))


def test_where_columns_do_not_fit_the_first_stands_above_the_others_and_long_names_break_at_their_parts() -> None:
    rows = [("model/conv2d_1/Relu;model/conv2d_1/BiasAdd", "conv", 12), ("x", "add", 3456)]
    assert table(("layer", "op", "cycles"), rows, 24).splitlines() == [
        *("layer", "  op    cycles"),
        *("model/conv2d_1/Relu;", "  model/conv2d_1/BiasAdd", "  conv      12"),
        *("x", "  add    3,456"),
    ]
    tall = table(("op", "limits"), [("conv", "one two " * 7)], 14)  # 6 lines would stand beside it
    assert tall.splitlines()[:3] == ["conv", "  limits: one", "    two one"]
    assert table(("op", "limits"), [("conv", "one two " * 6)], 14).startswith("op    limits\nconv  one two")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_terminal_gets_lines_that_end_between_words(width: int) -> None:
    text = (
        "error[E203] Conv 'stem': Ho = 300 does not fit in 8 bits\n  help: split the image, or use another machine"
    )
    lines = fold(text, width).split("\n")
    assert all(len(line) <= width for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert all(line.startswith("  ") for line in lines if not line.startswith("error"))
    assert fold(text, 200) == text


@given(st.integers())
def test_counts_read_back(number: int) -> None:
    assert int(count(number).replace(",", "")) == number


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_json_is_ascii_and_reads_back(value: object) -> None:
    assert as_json(value).isascii() and json.loads(as_json(value)) == value


def test_json_takes_file_names_that_are_not_utf8() -> None:
    assert json.loads(as_json({"file": "\udcff.onnx"})) == {"file": "\udcff.onnx"}


@pytest.mark.parametrize(("name", "hint"), [
    ("easynp", " Did you mean 'easynpu'?"), ("EASYNPU", " Did you mean 'easynpu'?"),
    ("bm168", " Did you mean 'bm1684'?"), ("tpu-v4", ""), ("", ""),
])  # fmt: skip
def test_a_hint_names_only_what_is_close(name: str, hint: str) -> None:
    assert closest(name, ("easynpu", "bm1684")) == hint


def test_there_is_no_progress_bar_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with progress("running") as bar:
        bar.begin("simulating", 3)
        bar.advance(3)
    assert pipe.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_bar_counts_on_a_terminal_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("running") as bar:
        bar.begin("simulating", 3)
        bar.advance(1)
        bar.advance(2)
    assert "running: simulating 0/3" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith(CLEAR.strip())


def test_parts_without_steps_count_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("running") as bar:
        bar.begin("simulating", 3)
        bar.begin("writing [red]")
    before, _, after = terminal.getvalue().partition("running: writing [red]")
    assert "0/3" in before and "/3" not in after


def test_stages_are_named_on_a_terminal_and_go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("compiling") as bar:
        bar.begin("choosing scales")
    assert "compiling: choosing scales" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith(CLEAR.strip())


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_no_stages_are_named_in_a_pipe_or_quietly(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, quiet: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("compiling", quiet=quiet) as bar:
        bar.begin("choosing scales", 2)
        bar.advance(1)
    assert stream.getvalue() == ""


def test_pages_that_errors_name_are_part_of_the_wheel() -> None:
    root = Path(__file__).resolve().parents[2]
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("bm1684", "easynpu", "nvdla"):
        assert f'"docs/{name}.md" = "npuc/docs/{name}.md"' in project
        assert "Machine files" in page(f"{name}.md").read_text(encoding="utf-8")
