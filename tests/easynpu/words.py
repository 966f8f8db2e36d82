"""Words written by hand, and the cycle model's counts for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npuc.targets.easynpu.machine.chains import check, expect_kept
from npuc.targets.easynpu.machine.isa import Instruction, Layer
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.simulate.walk import chains_of

CONV, CONV_RELU, DWCONV, BN, RELU, MAXPOOL, ADD = 0x00, 0x04, 0x01, 0x02, 0x06, 0x0E, 0x16
FUSED, STORED = 0x20, 0x40
MACHINE = Machine(fmap_words=600, skip_words=600)


@dataclass
class Counts:
    """Of a chain."""

    cycles: int
    compute_cycles: int
    bus_words: int
    weight_words: int


def counted(words: Sequence[Instruction], machine: Machine = MACHINE) -> list[Counts]:
    """The counts of every chain. Raises ArtefactError (E503) for what no machine executes."""
    found: list[Counts] = []
    kept = None
    for chain in chains_of(tuple(words), 0, machine):
        check(chain.stages, machine, chain.low)
        kept = expect_kept(kept, chain.stages)
        counts = (int(each[0]) for each in (chain.cost.cycles, chain.cost.compute, chain.cost.bus))
        found.append(Counts(*counts, chain.weight_words))
    return found


def layer(
    opcode: int, size: tuple[int, int], kernel: int, pad: int, Ci: int, Co: int, tile: tuple[int, int]
) -> Layer:
    """A layer with stride 1, a square kernel and this padding before and after."""
    Ho, Wo = (extent + 2 * pad - kernel + 1 for extent in size)
    return Layer(
        opcode=opcode, Ph=pad, Pw=pad, Hk=kernel, Wk=kernel, Hi=size[0], Wi=size[1], Ci=Ci, Ho=Ho, Wo=Wo, Co=Co,
        Zs=-(-Co // 16), y=tile[0], x=tile[1], yi=tile[0] + kernel - 1, xi=tile[1] + kernel - 1,
    )  # fmt: skip
