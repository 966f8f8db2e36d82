"""Random programs: tests of the word simulator with the RTL in its place.

There the results of every word and both memories, which hold noise before, are compared with a slow interpreter of
the document's loop nest. Here every chain must also take the cycles that the cycle model gives. One core
has three rows of PEs, which take turns at the positions of a word, the other a single set of ifmap pads and psums
that are written first; cores with a single row that have none of this, or the set of pads alone, run networks.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from tests.easynpu import test_simulator as programs
from tests.easynpu_reshape import test_programs as reshapes
from tests.easynpu_rtl.rig import CORES, install

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, params=CORES)
def _rtl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, request.param)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("op", programs.HEADS)
def test_a_single_word_computes_what_the_loop_nest_computes(op: int, seed: int) -> None:
    programs.test_a_single_word_computes_what_the_loop_nest_computes(op, seed)


@pytest.mark.parametrize("seed", range(6))
def test_fused_chains_and_their_ends_agree_with_the_loop_nest(seed: int) -> None:
    programs.test_fused_chains_and_their_ends_agree_with_the_loop_nest(seed)


@pytest.mark.parametrize("seed", range(6))
def test_explicit_operands_lie_where_their_pitches_say(seed: int) -> None:
    programs.test_explicit_operands_lie_where_their_pitches_say(seed)


@pytest.mark.parametrize("seed", range(6))
def test_kept_psums_accumulate_over_words_that_read_maps_of_their_own(seed: int) -> None:
    programs.test_kept_psums_accumulate_over_words_that_read_maps_of_their_own(seed)


@pytest.mark.parametrize("seed", range(6))
def test_psums_stay_in_the_pads_from_chain_to_chain(seed: int) -> None:
    programs.test_psums_stay_in_the_pads_from_chain_to_chain(seed)


@pytest.mark.parametrize("seed", range(4))
def test_the_weight_stream_can_be_set_to_any_word(seed: int) -> None:
    programs.test_the_weight_stream_can_be_set_to_any_word(seed)


def test_a_second_operand_may_be_replaced_where_it_lies() -> None:
    programs.test_a_second_operand_may_be_replaced_where_it_lies()


@pytest.mark.parametrize("replaced", [0, 1])
def test_a_sum_of_kept_words_may_replace_either_of_its_maps(replaced: int) -> None:
    programs.test_a_sum_of_kept_words_may_replace_either_of_its_maps(0, replaced)


@pytest.mark.parametrize("first", programs.HEADS)
def test_a_chain_reads_what_the_chain_before_wrote_last_and_never_waits_for_it(first: int) -> None:
    """Every word behind every other, on maps of few pixels: results are still queued as the next one decodes."""
    for seed, second in enumerate(programs.HEADS):
        random = np.random.default_rng((first, second))
        writer = programs.Writer(random)
        shape = (2, seed % 5 + 1, 16)
        for op in (first, second, first):
            layer = writer.head(op, shape, 16)
            writer.emit(layer)
            shape = programs.shape_of(layer)
        programs.compare(writer, *programs.noise(random, 1))


@pytest.mark.parametrize("seed", range(6))
def test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter(seed: int) -> None:
    reshapes.test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter(seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_reshape_reads_and_writes_where_extension_words_say(seed: int) -> None:
    reshapes.test_a_reshape_reads_and_writes_where_extension_words_say(seed)


@pytest.mark.parametrize("fused", [False, True])
def test_channels_that_stay_together_go_over_the_end_of_a_word(fused: bool) -> None:
    reshapes.test_channels_that_stay_together_go_over_the_end_of_a_word(fused)


def test_a_stored_word_before_a_reshape_keeps_the_order_that_it_had() -> None:
    reshapes.test_a_stored_word_before_a_reshape_keeps_the_order_that_it_had()


def test_lanes_behind_the_last_channel_of_a_reshaped_map_are_zero() -> None:
    reshapes.test_lanes_behind_the_last_channel_of_a_reshaped_map_are_zero()
