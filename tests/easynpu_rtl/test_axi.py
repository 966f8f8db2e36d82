"""The AXI adapter alone: bursts, strobes, back-pressure, answers to what is not allowed; and mistakes in it."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from npuc.targets.easynpu.rtl.wrapper import Adapter
from tests.easynpu_rtl import axi_mutants, axi_trials
from tests.easynpu_rtl.axi_trials import TRIALS, TRIALS_OF_WAITS, Trial
from tests.easynpu_rtl.mutants import Mutant, source

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.__name__)
def test_the_adapter(trial: Trial) -> None:
    trial(Adapter, 0)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("trial", TRIALS_OF_WAITS, ids=lambda trial: trial.__name__)
def test_the_adapter_waits_at_random(trial: Trial, seed: int) -> None:
    trial(Adapter, seed)


def test_every_mistake_replaces_an_expression_that_stands_there_once() -> None:
    for mutant in axi_mutants.MUTANTS:
        assert source(mutant.module).count(mutant.right) == 1, mutant.name


@pytest.mark.parametrize("mutant", axi_mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(mutant: Mutant) -> None:
    trial = getattr(axi_trials, mutant.shown_by)
    with pytest.raises(AssertionError):
        trial(axi_mutants.adapter(mutant), 0)
