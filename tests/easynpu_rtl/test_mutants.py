"""Mistakes in the hardware description: every one must be found by random programs, and none found without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from npuc.errors import ArtefactError
from npuc.targets.easynpu.rtl import simulation
from tests.easynpu import test_simulator as programs
from tests.easynpu_reshape import test_programs as reshapes
from tests.easynpu_rtl import mutants
from tests.easynpu_rtl.rig import CORES, install

pytestmark = pytest.mark.slow

MOST_CYCLES = 100_000
"""Far more than any of the programs takes: a mutant may never come to an end."""
ROUNDS = 3
"""Of programs of every kind, until one finds a mistake."""


def trials(rounds: int) -> Iterator[Callable[[], None]]:
    """Random programs of every kind, compared with the loop nest and with the cycle model's cycles."""
    single = programs.test_a_single_word_computes_what_the_loop_nest_computes
    several = (
        programs.test_fused_chains_and_their_ends_agree_with_the_loop_nest,
        programs.test_explicit_operands_lie_where_their_pitches_say,
        programs.test_kept_psums_accumulate_over_words_that_read_maps_of_their_own,
        reshapes.test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter,
    )
    for seed in range(rounds):
        yield from (partial(single, op, seed) for op in programs.HEADS)
        yield from (partial(each, 4 * seed + number) for each in several for number in range(4))
        over = reshapes.test_channels_that_stay_together_go_over_the_end_of_a_word
        yield from (partial(over, fused) for fused in (False, True))


def killed(patch: pytest.MonkeyPatch, number: int, core: str, rounds: int = ROUNDS) -> bool:
    """Whether any program of so many rounds behaves differently with this mutant."""
    state = simulation.Simulation.state

    def selected(self: simulation.Simulation, samples: int) -> simulation.State:
        found = state(self, samples)
        found.board.set_register(mutants.REGISTER, number)
        return found

    install(patch, core)
    patch.setattr(simulation, "CYCLES_MOST", MOST_CYCLES)
    patch.setattr(simulation.Simulation, "state", selected)
    for trial in trials(rounds):
        try:
            trial()
        except (AssertionError, ArtefactError, IndexError):  # the last: a result beside its map
            return True
    return False


def test_every_mutant_is_an_expression_that_stands_in_the_hardware_once() -> None:
    for mutant in mutants.MUTANTS:
        assert mutants.source(mutant.module).count(mutant.right) == 1, mutant.name


@pytest.mark.parametrize("core", CORES)
def test_the_core_without_a_mistake_passes(monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    """No mistake is selected, and none found: one round of the programs, all of which test_programs runs."""
    assert not killed(monkeypatch, 0, core, rounds=1)


@pytest.mark.parametrize(
    ("number", "core"),
    [
        pytest.param(number, mutant.shown_by, id=mutant.name)
        for number, mutant in enumerate(mutants.MUTANTS, start=1)
    ],
)
def test_a_mistake_in_the_hardware_is_found(monkeypatch: pytest.MonkeyPatch, number: int, core: str) -> None:
    assert killed(monkeypatch, number, core)
