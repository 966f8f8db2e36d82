"""What only the stepping simulator sees is refused (E503) with instruction and tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.targets.easynpu.machine.chains import chains
from npuc.targets.easynpu.machine.isa import EXTENSIONS, Instruction, Operand
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.simulate.hardware import Hardware
from npuc.targets.easynpu.simulate.layer_run import LayerRun
from npuc.targets.easynpu.simulate.refilling import Reads
from tests.easynpu_stepping.bench import ADD, CONV, FUSED, layer, run

WORD = layer(CONV, (4, 4), 3, 1, 16, 16, (2, 4))
MACHINE = Machine(fmap_words=600, skip_words=600)


def refusal(words: Sequence[Instruction], stream: np.ndarray | None = None, *, filled: bool = True) -> str:
    with pytest.raises(ArtefactError) as caught:
        run(words, stream, filled=filled)
    assert caught.value.problems[0].code == "E503"
    return caught.value.problems[0].reason


@pytest.mark.parametrize("early", [1, 1000])
def test_a_loader_that_does_not_wait_for_the_reader_is_caught(early: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One set of ifmap pads: word n may follow the read of entry n, neither take its cycle nor come before it."""
    word, machine = layer(CONV, (4, 4), 1, 0, 32, 16, (4, 4)), replace(MACHINE, ifmap_pad_sets=1)
    run([word], machine=machine)
    lowest = Reads.lowest

    def raised(self: Reads) -> np.ndarray:
        return lowest(self) + early

    monkeypatch.setattr(Reads, "lowest", raised)
    with pytest.raises(
        ArtefactError, match=r"tile \(0, 0\): entry 0 of an ifmap pad is overwritten before its last"
    ):
        run([word], machine=machine)
    run([word])


def test_a_map_that_nobody_loaded_cannot_be_read() -> None:
    assert refusal([WORD], filled=False) == (
        "instruction 0, tile (0, 0): word 0 of the fmap DTCM is read before it is written"
    )


def test_a_kept_map_that_nobody_stored_cannot_be_added() -> None:
    add = replace(WORD, opcode=ADD, Hk=1, Wk=1, Ph=0, Pw=0, yi=2, xi=4)
    with pytest.raises(
        ArtefactError, match=r"instruction 1, tile \(0, 0\): word 0 of the skip DTCM is read before"
    ):
        execute([replace(WORD, opcode=CONV | FUSED), add], filled=("fmap",))


def execute(words: Sequence[Instruction], filled: Sequence[str] = ("fmap", "skip")) -> Hardware:
    """One chain without the checks that refuse it before it runs."""
    hardware = Hardware.of(MACHINE)
    hardware.weight.load(np.arange(MACHINE.weight_words), np.zeros((MACHINE.weight_words, 16), np.int8))
    for name in filled:
        hardware.dtcm(name).written[:] = True
    (chain,) = chains(tuple(words), 0)
    LayerRun(hardware, chain).run(len(words))
    return hardware


def test_a_layer_that_writes_over_its_own_map_is_caught_at_the_tile_that_reads_too_late() -> None:
    """Tiles of two rows: the second one needs row 1, on which the first one's results lie."""
    dst = Operand(opcode=EXTENSIONS["dst"].opcode, memory=0, base=0, row=4, pixel=1, group=1)
    with pytest.raises(
        ArtefactError, match=r"instruction 1, tile \(2, 0\): word 4 of the fmap DTCM is read after"
    ):
        execute([dst, WORD])


@pytest.mark.parametrize("base", [-1 + (1 << 24), 590])
def test_an_address_outside_a_memory_is_caught_where_it_is_reached(base: int) -> None:
    src = Operand(opcode=EXTENSIONS["src"].opcode, memory=0, base=base, row=4, pixel=1, group=1)
    with pytest.raises(
        ArtefactError, match=r"instruction 1, tile \(\d, 0\): word \d+ of the fmap DTCM is addressed"
    ):
        execute([src, WORD])


def test_padding_around_a_map_at_the_end_of_a_memory_reads_nothing_outside() -> None:
    src = Operand(opcode=EXTENSIONS["src"].opcode, memory=0, base=600 - 16, row=4, pixel=1, group=1)
    dst = Operand(opcode=EXTENSIONS["dst"].opcode, memory=1, base=600 - 16, row=4, pixel=1, group=1)
    found = run([src, dst, WORD])
    assert found.layers[0].padding_words == 2 * 4 * 6 - 2 * 12
    execute([src, dst, WORD])


@pytest.mark.parametrize("fields", [{"xi": 5}, {"yi": 3}])
def test_a_sub_ifmap_smaller_than_the_window_of_its_tile_is_caught(fields: dict[str, int]) -> None:
    with pytest.raises(ArtefactError, match=r"instruction 0, tile \(0, 0\): the tile needs 4 x 6 entries"):
        execute([replace(WORD, **fields)])


def test_a_psum_that_leaves_32_bits_is_refused_at_its_tile() -> None:
    """The bias of channel 0 is 2^31 - 1, the first product 1: the sum is one too large."""
    stream = np.zeros((1536, 16), np.int8)
    stream[:4, 0] = [-1, -1, -1, 127]
    stream[5:, 0] = 127
    word = layer(CONV, (4, 4), 1, 0, 1, 16, (2, 4))
    reason = refusal([word], stream)
    assert "instruction 0, tile (0, 0): a psum leaves 32 bits" in reason


def test_shift_scales_beyond_31_are_refused_but_not_those_of_pes_that_take_no_part() -> None:
    stream = np.zeros((1536, 16), np.int8)
    stream[4, 10] = -40
    word = layer(CONV, (4, 4), 1, 0, 1, 16, (2, 4))
    assert "instruction 0, tile (0, 0): shift scales of -40..0" in refusal([word], stream)
    run([replace(word, Co=10)], stream)


def test_a_program_longer_than_what_was_loaded_is_refused() -> None:
    with pytest.raises(ArtefactError, match="program ends within a chain"):
        run([replace(WORD, opcode=CONV | FUSED)])


def test_more_parameters_than_the_pads_hold_are_refused() -> None:
    machine = Machine(fmap_words=600, skip_words=600, parameter_pad_entries=1)
    with pytest.raises(ArtefactError, match="2 of 1 entries of the bias and scale pads"):
        run([layer(CONV, (4, 4), 1, 0, 16, 32, (2, 4))], machine=machine)
