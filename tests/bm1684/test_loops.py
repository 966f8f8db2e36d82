"""Loops in the emitted C stand for exactly the statements that they replace."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from npuc.targets.bm1684.export.loops import rolled


def _unrolled(lines: list[str]) -> list[str]:
    """What the lines execute, loops written out."""
    found: list[str] = []
    body: list[str] | None = None
    count = 0
    for line in lines:
        head = re.fullmatch(r"for \(int i = 0; i < (\d+); i\+\+\) \{", line)
        if head:
            body, count = [], int(head[1])
        elif line == "}" and body is not None:
            found += [_at(each, i) for i in range(count) for each in body]
            body = None
        elif body is not None:
            body.append(line.strip())
        else:
            found.append(line)
    return found


def _at(line: str, i: int) -> str:
    return re.sub(r"(\d+) ([+-]) i \* (\d+)", lambda m: str(eval(f"{m[1]} {m[2]} {i} * {m[3]}")), line)


def test_evenly_growing_statements_become_a_loop() -> None:
    lines = [line for k in range(5) for line in ("start();", f"copy({128 * k}, {900 - 10 * k}, 7, 0.5f);")]
    assert rolled(lines) == [
        "for (int i = 0; i < 5; i++) {",
        "    start();",
        "    copy(0 + i * 128, 900 - i * 10, 7, 0.5f);",
        "}",
    ]


def test_two_short_statements_stay_as_they_are() -> None:
    assert rolled(["f(1);", "f(2);", "g(1);"]) == ["f(1);", "f(2);", "g(1);"]


def test_digits_of_names_and_floats_do_not_grow() -> None:
    lines = [f"f_32bit{k}(x.5f);" for k in range(4)]
    assert rolled(lines) == lines


@given(st.lists(st.tuples(st.sampled_from("fgh"), st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_loops_execute_the_statements_in_order(calls: list[tuple[str, int, int]]) -> None:
    lines = [f"{name}({a}, {b});" for name, a, b in calls]
    written = rolled(lines)
    assert _unrolled(written) == lines
    assert len(written) <= len(lines)
