"""Mistakes in the hardware description: every one must be found by random programs, and none found without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import CDLL
from functools import partial

import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from npuc.errors import ArtefactError
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import build, simulation
from tests.easynpu import test_simulator as programs
from tests.easynpu_rtl import mutants
from tests.easynpu_rtl.rig import Rtl

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rtl with mistakes")]

MOST_CYCLES = 100_000
"""Far more than any of the programs takes: a mutant may never come to an end."""


def trials() -> Iterator[Callable[[], None]]:
    """Random programs of every kind, compared with the loop nest and with the stepping simulator's cycles."""
    single = programs.test_a_single_word_computes_what_the_loop_nest_computes
    several = (
        programs.test_fused_chains_and_their_ends_agree_with_the_loop_nest,
        programs.test_explicit_operands_lie_where_their_pitches_say,
        programs.test_kept_psums_accumulate_over_words_that_read_maps_of_their_own,
    )
    for seed in range(3):
        yield from (partial(single, op, seed) for op in programs.HEADS)
        yield from (partial(each, 4 * seed + number) for each in several for number in range(4))


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    """One core with all mutants in place of the core."""
    patch = pytest.MonkeyPatch()
    patch.setattr(build, "verilog", mutants.verilog)
    try:
        library = build.library.__wrapped__(programs.MACHINE)
    except ArtefactError as error:
        patch.undo()
        pytest.skip(error.problems[0].reason)

    def with_mutants(_machine: Machine) -> CDLL:
        return library

    patch.setattr(build, "library", with_mutants)
    patch.setattr(programs, "Simulator", Rtl)
    patch.setattr(simulation, "CYCLES_MOST", MOST_CYCLES)
    yield patch
    patch.undo()


def killed(patch: pytest.MonkeyPatch, number: int) -> bool:
    """Whether any program behaves differently with this mutant."""
    state = simulation.Simulation.state

    def selected(self: simulation.Simulation, samples: int) -> simulation.State:
        found = state(self, samples)
        found.board.set_register(mutants.REGISTER, number)
        return found

    with patch.context() as inner:
        inner.setattr(simulation.Simulation, "state", selected)
        for trial in trials():
            try:
                trial()
            except (AssertionError, ArtefactError):
                return True
    return False


def test_every_mutant_is_an_expression_that_stands_in_the_hardware_once() -> None:
    for mutant in mutants.MUTANTS:
        assert mutants.source(mutant.module).count(mutant.right) == 1, mutant.name


def test_the_core_without_a_mistake_passes(patched: pytest.MonkeyPatch) -> None:
    assert not killed(patched, 0)


@pytest.mark.parametrize(
    "number", range(1, len(mutants.MUTANTS) + 1), ids=[mutant.name for mutant in mutants.MUTANTS]
)
def test_a_mistake_in_the_hardware_is_found(patched: pytest.MonkeyPatch, number: int) -> None:
    assert killed(patched, number)
