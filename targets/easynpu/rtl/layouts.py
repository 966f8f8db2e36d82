"""The interfaces between the blocks of a core: struct layouts, with widths from the machine and the words."""

from __future__ import annotations

from amaranth.lib import data

from npuc.storage.bits import places
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.pe import LEAVING, Addend, Factor
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.words import address_bits, index_bits, tables

WORD = LANES * BYTE
GROUP = index_bits(LANES)
"""Bits of the number of a 16-channel group in a map, and of a channel in a group."""


def stored_bits(name: str) -> int:
    """Bits of a field of the layer word; for an extent, of its last index."""
    return places(Layer)[name].width


def value_bits(name: str) -> int:
    """Bits of a field's largest value."""
    return places(Layer)[name].most.bit_length()


AHEAD = 4
"""Cycles from a loop's counters until an address that they give is used: terms, factors, products, sums."""
INDEX = stored_bits("Ho")
"""Bits of a row or column of a map."""
TILE = stored_bits("y")
"""Bits of a row or column of a tile, and of a sub-ifmap."""


def place(machine: Machine) -> data.StructLayout:
    """The place of a map, as in an Operand word, modulo the address width."""
    bits = address_bits(machine)
    return data.StructLayout({"memory": 1, "base": bits, "row": bits, "pixel": bits, "group": bits})


BOUNDS = data.StructLayout(
    {
        "one_hk": 1,  # a single row of the kernel, a single column
        "one_wk": 1,
        "one_channel": 1,  # the last group has a single channel
        "last_group": GROUP,
    }
)
"""The ends of the loops over a word that reads an ifmap."""


def load_stage(machine: Machine) -> data.StructLayout:
    """What the loader needs of a word that reads an ifmap."""
    return data.StructLayout(
        {
            "place": place(machine),
            "Sh": stored_bits("Sh"),
            "Sw": stored_bits("Sw"),
            "Ph": stored_bits("Ph"),
            "Pw": stored_bits("Pw"),
            "reach_h": TILE,  # last row and column of the kernel
            "reach_w": TILE,
            "xi": value_bits("xi"),
            "Hi": value_bits("Hi"),
            "Wi": value_bits("Wi"),
            "last_channel": GROUP,  # of the last group
            "lowest": 1,  # the padding is -128
            "bounds": BOUNDS,
        }
    )


def run_stage(machine: Machine) -> data.StructLayout:
    """What the sequencer needs of a word."""
    return data.StructLayout(
        {
            "Sh": stored_bits("Sh"),
            "Sw": stored_bits("Sw"),
            "dilation_h": value_bits("Dh") + 1,
            "dilation_w": value_bits("Dw") + 1,
            "last_hk": stored_bits("Hk"),
            "last_wk": stored_bits("Wk"),
            "xi": value_bits("xi"),
            "factor": Factor,
            "bypass": 1,
            "compare": 1,
            "start": Addend,  # the adder's second input in the first pass
            "leaving": LEAVING,
            "weights": 1,
            "reads": 1,  # a second operand
            "stored": 1,
            "entry": index_bits(machine.parameter_pad_entries),
            "table": index_bits(tables(machine)),
            "tabulated": 1,
            "operand": place(machine),
            "copy": place(machine),
        }
    )


def weight_block(machine: Machine) -> data.StructLayout:
    """Consecutive weight words that a tile, or channel-wise a group of a tile, reads."""
    bits = machine.weight_words.bit_length()
    return data.StructLayout({"base": bits, "count": bits})


def chain(machine: Machine) -> data.StructLayout:
    """What the words of a chain share."""
    stage = index_bits(machine.itcm_words)
    return data.StructLayout(
        {
            "dense": 1,
            "last_row": stored_bits("Ho"),
            "last_column": stored_bits("Wo"),
            "last_channel": stored_bits("Co"),
            "y": value_bits("y"),
            "x": value_bits("x"),
            "source": 1,  # the memory of the first word's ifmap
            "last_part": stage,
            "last_stage": stage,
            "target": place(machine),
            "scattered": 1,  # a reshape word determines where results go
            "takes": 1,  # it continues on the psums that the previous chain kept
            "leaves": 1,  # its psums stay in the pads for the next chain
        }
    )


def step(machine: Machine) -> data.StructLayout:
    """The computation with one filling of the ifmap pads (schedule.PadStep)."""
    return data.StructLayout(
        {
            "oy": INDEX,
            "ox": INDEX,
            "y": value_bits("y"),
            "x": value_bits("x"),
            "positions": value_bits("y") + value_bits("x"),
            "part": index_bits(machine.itcm_words),
            "group": GROUP,
            "last_channel": GROUP,
            "one_hk": 1,
            "one_wk": 1,
            "one_channel": 1,
            "first": 1,
            "last": 1,
            "side": 1,
        }
    )


def request(machine: Machine) -> data.StructLayout:
    """A read of a DTCM word."""
    return data.StructLayout({"valid": 1, "memory": 1, "address": address_bits(machine)})


def piece(machine: Machine) -> data.StructLayout:
    """The destination of a result, or of lanes of it, and of its copy, if there is one."""
    bits = address_bits(machine)
    return data.StructLayout(
        {
            "target": data.StructLayout({"valid": 1, "memory": 1, "address": bits}),
            "copy": data.StructLayout({"valid": 1, "memory": 1, "address": bits}),
            "rotation": GROUP,
            "lanes": LANES,
            "cleared": LANES,
            "last": 1,
        }
    )
