"""Random programs: every test of the fast simulator is repeated with the stepping one in its place.

There the results and both memories are compared with a slow interpreter of the document's loop nest that shares no
code with npuc. Here every layer's cycles, compute cycles and bus words must also be those of the cycle model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from npuc.bits import encode
from npuc.ir import Array
from npuc.targets.easynpu.machine.chains import Stage, chains
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.ports import port_use
from npuc.targets.easynpu.machine.rearrangement import most_written, run_length
from npuc.targets.easynpu.machine.timing import Followers, chain_cost
from npuc.targets.easynpu.program.artefact import Segment
from npuc.targets.easynpu.simulate.events import LayerCount
from npuc.targets.easynpu.simulate.hardware import Hardware
from npuc.targets.easynpu.simulate.stepping import Stepper
from npuc.targets.easynpu.simulate.streams import parameter_words
from tests.easynpu import naive
from tests.easynpu import test_simulator as programs
from tests.easynpu_reshape import test_programs as reshapes


@dataclass
class Memories:
    """The memories of several machines, as the fast simulator holds them."""

    fmap: Array
    skip: Array
    weight: Array


class Stepping:
    """The stepping simulator with the fast simulator's interface: sample after sample."""

    def __init__(self, machine: Machine, files: Mapping[str, bytes]) -> None:
        self.machine = machine
        self.stepper = Stepper(machine, files)

    def state(self, samples: int) -> Memories:
        sizes = (
            (samples, self.machine.fmap_words),
            (samples, self.machine.skip_words),
            (self.machine.weight_words,),
        )
        return Memories(*(np.zeros((*size, 16), np.int8) for size in sizes))

    def run(
        self,
        segment: Segment,
        state: Memories,
        tensors: dict[str, Array],
        observe: Callable[[int, Array], None] | None = None,
    ) -> None:
        found: dict[int, list[Array]] = {}
        for fmap, skip in zip(state.fmap, state.skip, strict=True):
            hardware = self.stepper.state(1)
            for dtcm, values in ((hardware.fmap, fmap), (hardware.skip, skip), (hardware.weight, state.weight)):
                dtcm.values[...], dtcm.written[...] = values, True
            self.stepper.layers.clear()
            self.stepper.run(segment, hardware, tensors, lambda n, values: found.setdefault(n, []).append(values))
            expect_modelled(hardware, segment.count, self.stepper.layers)
            fmap[...], skip[...] = hardware.fmap.values, hardware.skip.values
        for number, values in found.items():
            if observe is not None:
                observe(number, np.concatenate(values))


def expect_modelled(hardware: Hardware, count: int, layers: Sequence[LayerCount]) -> None:
    """The cycle model gives the counts from the words alone."""
    done, low = 0, True
    for chain, counted in zip(chains(hardware.itcm[:count], 0), layers, strict=True):
        words = chain[-1].number + 1 - done
        done += words
        cycles, compute, bus = modelled(chain, words, hardware.machine, low)
        assert (counted.cycles, counted.compute_cycles, counted.bus_words) == (cycles, compute, bus)
        low = low if "dst" in chain[-1].operands or chain[-1].leaves else not low


def modelled(chain: Sequence[Stage], words: int, machine: Machine, low: bool) -> tuple[int, int, int]:
    if chain[0].reshape is not None:  # a word is read, and written to every word that it has lanes for
        read, written = chain[0].ifmap(machine, low).grid.size, sum(scattered(chain[0].reshape))
        return words + 192 + read + written, 0, read + written
    last, target = chain[-1], chain[-1].ofmap(machine, not low)
    times = 1
    if last.reshape is not None:
        times, chain = most_written(last.reshape), chain[:-1]
    kept = sum(stage.keeps for stage in chain[:-1])
    parts, fused = [stage.layer for stage in chain[: kept + 1]], chain[kept + 1 :]
    ports = []
    for stage in chain[kept:]:
        reads = stage.operand().place.memory if stage.name in ("add", "mul") else None
        writes = [stage.stored().place.memory] if stage.layer.stored else []
        if stage is chain[-1] and not stage.leaves:
            writes.append(target.place.memory)
        source = chain[0].ifmap(machine, low).place.memory
        ports.append(port_use(reads, writes, source, times if stage is chain[-1] else 1))
    loaded = sum(parameter_words(stage) for stage in fused)
    extra = words - len(parts) + (192 if last.reshape is not None else 0)
    followers = Followers(len(fused), loaded, extra, tuple(ports))
    y, x = (np.array([extent]) for extent in (parts[0].y, parts[0].x))
    cost = chain_cost(parts, y, x, machine, followers)
    return int(cost.cycles[0]), int(cost.compute[0]), int(cost.bus[0])


def scattered(word: Reshape) -> list[int]:
    """For every word of a map the pieces that it falls into, by the interpreter of the document."""
    fields = naive.fields(naive.RESHAPE, encode(word))
    number = np.arange(word.Hi * word.Wi * word.Ci).reshape(word.Hi, word.Wi, word.Ci)
    pieces = np.zeros((word.Hi * word.Wi, -(-word.Ci // 16)), np.int64)
    for at, of in np.ndenumerate(naive.restacked(number, fields)):
        pixel, channel = divmod(int(of), word.Ci)
        pieces[pixel, channel // 16] += 0 in (channel % 16, channel % run_length(word), at[2] % 16)
    return [int(each) for each in pieces.ravel()]


BOTH = pytest.mark.parametrize("_stepping", [1, 2], indirect=True, ids=["one set of pads", "two sets of pads"])


@pytest.fixture(autouse=True)
def _stepping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random program runs with one set of pads or two, by its seed and the rows of PEs; all others with each."""
    given = request.node.callspec.params
    sets = request.param if hasattr(request, "param") else 1 + (given["seed"] + given.get("rows", 0)) % 2
    monkeypatch.setattr(programs, "MACHINE", replace(programs.MACHINE, ifmap_pad_sets=sets))
    monkeypatch.setattr(programs, "Simulator", Stepping)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("op", programs.HEADS)
def test_a_single_word_computes_what_the_loop_nest_computes(op: int, seed: int) -> None:
    programs.test_a_single_word_computes_what_the_loop_nest_computes(op, seed)


@pytest.mark.parametrize("seed", range(20))
def test_fused_chains_and_their_ends_agree_with_the_loop_nest(seed: int) -> None:
    programs.test_fused_chains_and_their_ends_agree_with_the_loop_nest(seed)


@pytest.mark.parametrize("seed", range(20))
def test_explicit_operands_lie_where_their_pitches_say(seed: int) -> None:
    programs.test_explicit_operands_lie_where_their_pitches_say(seed)


@pytest.mark.parametrize("rows", [2, 3, 16])
@pytest.mark.parametrize("seed", range(10))
def test_rows_of_pes_divide_the_positions_and_change_no_result(
    seed: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MACHINE", replace(programs.MACHINE, pe_rows=rows))
    programs.test_a_single_word_computes_what_the_loop_nest_computes(programs.HEADS[seed], seed)
    programs.test_fused_chains_and_their_ends_agree_with_the_loop_nest(seed)
    programs.test_explicit_operands_lie_where_their_pitches_say(seed)


@pytest.mark.parametrize("seed", range(15))
def test_kept_psums_accumulate_over_words_that_read_maps_of_their_own(seed: int) -> None:
    programs.test_kept_psums_accumulate_over_words_that_read_maps_of_their_own(seed)


@pytest.mark.parametrize("seed", range(15))
def test_psums_stay_in_the_pads_from_chain_to_chain(seed: int) -> None:
    programs.test_psums_stay_in_the_pads_from_chain_to_chain(seed)


@pytest.mark.parametrize("seed", range(15))
def test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter(seed: int) -> None:
    reshapes.test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter(seed)


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_pes_scatter_as_one_row_does(seed: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MACHINE", replace(programs.MACHINE, pe_rows=rows))
    reshapes.test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter(seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_reshape_reads_and_writes_where_extension_words_say(seed: int) -> None:
    reshapes.test_a_reshape_reads_and_writes_where_extension_words_say(seed)


@BOTH
def test_a_stored_word_before_a_reshape_keeps_the_order_that_it_had() -> None:
    reshapes.test_a_stored_word_before_a_reshape_keeps_the_order_that_it_had()


@BOTH
def test_lanes_behind_the_last_channel_of_a_reshaped_map_are_zero() -> None:
    reshapes.test_lanes_behind_the_last_channel_of_a_reshaped_map_are_zero()


@pytest.mark.parametrize("seed", range(8))
def test_the_weight_stream_can_be_set_to_any_word(seed: int) -> None:
    programs.test_the_weight_stream_can_be_set_to_any_word(seed)


@BOTH
@pytest.mark.parametrize(("op", "psum", "scale", "result"), [(0x00, *row) for row in programs.RTL])
def test_a_psum_is_rounded_half_up_and_saturated(op: int, psum: int, scale: int, result: int | None) -> None:
    programs.test_a_psum_is_rounded_half_up_and_saturated(op, psum, scale, result)


@BOTH
@pytest.mark.parametrize("channels", [20, 32])
def test_every_segment_starts_at_the_low_end_with_the_weights_it_loads(channels: int) -> None:
    programs.test_every_segment_starts_at_the_low_end_with_the_weights_it_loads(channels)


@BOTH
def test_a_second_operand_may_be_replaced_where_it_lies() -> None:
    programs.test_a_second_operand_may_be_replaced_where_it_lies()


@BOTH
@pytest.mark.parametrize(("words", "number", "reason"), programs.MALFORMED)
def test_a_word_that_no_machine_executes_is_refused_by_number(
    words: Sequence[int], number: int, reason: str
) -> None:
    programs.test_a_word_that_no_machine_executes_is_refused_by_number(words, number, reason)


@BOTH
@pytest.mark.parametrize("op", [0x00, 0x16, 0x1A])
def test_a_bias_where_the_adder_has_another_input_is_refused(op: int) -> None:
    programs.test_a_bias_where_the_adder_has_another_input_is_refused(op)


@pytest.mark.parametrize("seed", range(30))
def test_a_program_with_a_flipped_bit_runs_as_its_words_say_or_is_refused(seed: int) -> None:
    programs.test_a_program_with_a_flipped_bit_runs_as_its_words_say_or_is_refused(seed)
