"""The host's part of a segment, loading and storing, for all simulators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.chains import refused
from npuc.targets.easynpu.machine.memory import LANES, unpack_feature
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import Segment, TensorMove


class LoadableMachine(Protocol):
    """A machine whose instruction memory and weight DTCM the host fills."""

    itcm: tuple[isa.Instruction, ...]

    def load_weights(self, address: int, words: Array) -> None:
        """Fills the weight DTCM with words (n, 16) int8 from an address on."""
        ...


def load_images(segment: Segment, files: Mapping[str, bytes], machine: Machine, state: LoadableMachine) -> int:
    """Fills ITCM and weight DTCM; returns the number in itcm.bin of the first word.

    Raises ArtefactError (E503) where the segment runs more words than are loaded.
    """
    first = 0
    for image in segment.images:
        data = image.data(files, machine)
        if image.memory == "itcm":
            first, state.itcm = image.start, isa.bytes_to_words(data)
        else:
            state.load_weights(image.address, np.frombuffer(data, np.int8).reshape(-1, LANES))
    if not 0 <= segment.count <= len(state.itcm):
        raise refused(first, f"{segment.count} words are run, {len(state.itcm)} are loaded", None)
    return first


def keep(move: TensorMove, words: Array, tensors: dict[str, Array]) -> None:
    """Copies words (samples, H, W, groups, 16) to their window of a host tensor, which is created if needed."""
    put(move, unpack_feature(words, move.channels), tensors)


def put(move: TensorMove, planes: Array, tensors: dict[str, Array]) -> None:
    """The same for planes (samples, C, H, W)."""
    if move.tensor not in tensors:
        tensors[move.tensor] = np.zeros((len(planes), *move.shape), np.int8)
    move.whole(tensors)[move.window] = planes
