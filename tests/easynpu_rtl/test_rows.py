"""Random programs on a core with three rows of PEs."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from tests.easynpu import test_simulator as programs
from tests.easynpu_reshape import test_programs as reshapes
from tests.easynpu_rtl.rig import Rtl, needed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rtl of three rows")]
"""One process builds this core and runs all that needs it."""


@pytest.fixture(autouse=True)
def _three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(programs.MACHINE, pe_rows=3, psum_write_first=True)
    needed(machine)
    monkeypatch.setattr(programs, "MACHINE", machine)
    monkeypatch.setattr(programs, "Simulator", Rtl)


@pytest.mark.parametrize("op", programs.HEADS)
def test_rows_of_pes_take_turns_at_the_positions_of_a_word(op: int) -> None:
    programs.test_a_single_word_computes_what_the_loop_nest_computes(op, 0)


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_pes_run_chains_and_reshapes(seed: int) -> None:
    programs.test_fused_chains_and_their_ends_agree_with_the_loop_nest(seed)
    programs.test_explicit_operands_lie_where_their_pitches_say(seed)
    reshapes.test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter(seed)
