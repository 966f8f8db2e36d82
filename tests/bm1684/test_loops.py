"""Loops in the emitted C stand for exactly the statements that they replace."""

from __future__ import annotations

import re
from collections import namedtuple

from hypothesis import given
from hypothesis import strategies as st

from npuc.targets.bm1684.export.loops import roll_loops

BUFFERS = {"AT_a": 4096, "AT_b": 64, "AT_c": 77777}
"""Constants of buffers that the statements name."""


def _calls(lines: list[str]) -> list[tuple[object, ...]]:
    """The calls that C of this form makes, with the values of their arguments: it is read as Python."""
    python, depth = list[str](), 0
    for line in map(str.strip, lines):
        if head := re.fullmatch(r"for \(int i = 0; i < (\d+); i\+\+\) \{", line):
            python.append(f"{' ' * depth}for i in range({head[1]}):")
            depth += 1
        elif head := re.fullmatch(r"static const struct \{ int (.*); \} each\[\d+\] = \{", line):
            python += [f"{' ' * depth}Row = namedtuple('Row', {head[1]!r})", f"{' ' * depth}each = ["]
        elif line == "};":
            python.append("]")
        elif row := re.fullmatch(r"\{(.*)\},", line):
            python.append(f"Row({row[1]}),")
        elif line == "}":
            depth -= 1
        else:
            python.append(f"{' ' * depth}{line.rstrip(';')}")
    found: list[tuple[object, ...]] = []
    functions = {name: lambda *args, name=name: found.append((name, *args)) for name in ("f", "g", "h", "start")}
    exec("\n".join(python), {"namedtuple": namedtuple, **BUFFERS, **functions})
    return found


def test_evenly_growing_statements_become_a_loop() -> None:
    lines = [line for k in range(5) for line in ("start();", f"copy({128 * k}, {900 - 10 * k}, 7, 0.5f);")]
    assert roll_loops(lines) == [
        "for (int i = 0; i < 5; i++) {",
        "    start();",
        "    copy(i * 128, 900 - i * 10, 7, 0.5f);",
        "}",
    ]


def test_rows_of_a_buffer_grow_from_its_constant() -> None:
    lines = ["f(AT_a, 3);", *(f"f(AT_a + {64 * k:#x}, {3 + k});" for k in range(1, 4))]
    assert roll_loops(lines) == ["for (int i = 0; i < 4; i++) {", "    f(AT_a + i * 64, 3 + i);", "}"]


def test_addresses_that_follow_no_rule_stand_in_a_table() -> None:
    places = ["AT_c", "AT_a + 0x40", "AT_b", "AT_a", "AT_a", "AT_c"]
    lines = [
        line for k, at in enumerate(places) for line in ("start();", f"f({at}, {at}, 9);", f"g({k}, {k * k});")
    ]
    assert roll_loops(lines) == [
        "for (int i = 0; i < 6; i++) {",
        "    static const struct { int value, value_2; } each[6] = {",
        *(f"        {{{at}, {k * k}}}," for k, at in enumerate(places)),
        "    };",
        "    start();",
        "    f(each[i].value, each[i].value, 9);",
        "    g(i, each[i].value_2);",
        "}",
    ]


def test_negative_numbers_grow_as_a_whole() -> None:
    lines = [f"f({-5 - 2 * k}, AT_a + {16 * k + 16:#x});" for k in range(4)]
    written = roll_loops(lines)
    assert len(written) == 3
    assert _calls(written) == _calls(lines)


def test_a_number_that_an_int_cannot_hold_is_in_no_table() -> None:
    lines = [line for k in (1, 9, 2, 7) for line in ("start();", f"f({k << 31});", f"g({k});", "h(1);")]
    assert roll_loops(lines) == lines
    assert roll_loops(lines, tables=False) == lines


def test_two_short_statements_stay_as_they_are() -> None:
    assert roll_loops(["f(1);", "f(2);", "g(1);"]) == ["f(1);", "f(2);", "g(1);"]


def test_digits_of_names_and_floats_do_not_grow() -> None:
    lines = [f"f_32bit{k}(x.5f);" for k in range(4)]
    assert roll_loops(lines) == lines


ADDRESS = st.builds(
    lambda name, further: f"{name}{f' + {further:#x}' if further else ''}",
    st.sampled_from(sorted(BUFFERS)),
    st.sampled_from((0, 16, 32, 48)),
)
NUMBER = st.one_of(st.integers(0, 4).map(str), st.just(str(1 << 31)), ADDRESS)
CALL = st.tuples(st.sampled_from("fgh"), NUMBER, NUMBER)


@given(st.lists(CALL, max_size=6), st.lists(CALL, max_size=3), st.integers(1, 8), st.booleans())
def test_loops_execute_the_statements_in_order(
    calls: list[tuple[str, str, str]], block: list[tuple[str, str, str]], times: int, tables: bool
) -> None:
    repeated = [(name, f"{k * k % 5}", b) for k in range(times) for name, _, b in block]
    lines = [f"{name}({a}, {b});" for name, a, b in [*calls, *repeated, *calls]]
    written = roll_loops(lines, tables=tables)
    assert _calls(written) == _calls(lines)
    assert len(written) <= len(lines)
    assert tables or not any("static const" in line for line in written)
