"""How the tests are divided between processes and tiers."""

from __future__ import annotations

from itertools import chain

from tests.conftest import FAST, SLOW, TESTS, TOGETHER, process_of


def test_the_files_that_are_named_exist() -> None:
    named = [*chain.from_iterable(TOGETHER), *FAST, *(each.partition("::")[0] for each in SLOW)]
    assert [each for each in named if not (TESTS / each).is_file()] == []


def test_files_that_belong_together_have_one_process_and_others_their_own() -> None:
    command, networks = (
        f"tests/easynpu_rtl/test_{name}.py::test_digits[a::b]" for name in ("command", "networks")
    )
    assert process_of(command) == process_of(networks) != process_of("tests/easynpu_rtl/test_pe.py::test_digits")
    assert process_of("tests/cli/test_run.py::test_a") == process_of("tests/cli/test_run.py::test_b[1]")
    assert process_of("tests/cli/test_run.py::test_a") != process_of("tests/cli/test_words.py::test_a")
