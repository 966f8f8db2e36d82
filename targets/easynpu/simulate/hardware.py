"""An EasyNPU in the stepping simulator: its memories, pads and psums, and its state between words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Instruction, Layer
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.simulate.pads import NEVER, Dtcm, IfmapPads, ParameterPads, PsumFile, WeightPads


@dataclass
class Hardware:
    """The state of a machine; at power-up nothing in it has been written."""

    machine: Machine
    fmap: Dtcm
    skip: Dtcm
    weight: Dtcm
    ifmap_pads: IfmapPads
    weight_pads: WeightPads
    psums: PsumFile
    parameter_pads: ParameterPads
    itcm: tuple[Instruction, ...] = ()
    low: bool = True
    """The current map is at the low end of the Fmap DTCM."""
    weights_at: int = 0
    """Address of the weight stream's next word."""
    kept: Layer | None = None
    """The word whose psums are in the pads."""

    @classmethod
    def of(cls, machine: Machine) -> Hardware:
        """A machine with these sizes, at power-up."""
        return cls(
            machine,
            Dtcm("fmap", machine.fmap_words),
            Dtcm("skip", machine.skip_words),
            Dtcm("weight", machine.weight_words),
            IfmapPads(machine.ifmap_pad_entries, machine.ifmap_pad_sets),
            WeightPads(machine.weight_pad_entries),
            PsumFile(machine.psum_entries, machine.pe_rows),
            ParameterPads(machine.parameter_pad_entries),
        )

    def dtcm(self, name: str) -> Dtcm:
        """The Fmap or skip DTCM."""
        return self.fmap if name == "fmap" else self.skip

    def load_weights(self, address: int, words: Array) -> None:
        """Fills the weight DTCM with words (n, 16) from an address on."""
        self.weight.load(address + np.arange(len(words)), words)

    def begin_layer(self) -> None:
        """Resets the occupancy counts and the cycles of last reads."""
        for pads in (self.ifmap_pads, self.weight_pads, self.psums, self.parameter_pads):
            pads.most = 0
        self.ifmap_pads.needed[...] = NEVER

    def end_layer(self) -> None:
        """Makes the layer's results readable."""
        self.fmap.settle()
        self.skip.settle()
