"""The place of a tensor's feature cube in memory."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.program import Program
from npuc.target import Stored
from npuc.targets.nvdla.formats import feature
from npuc.targets.nvdla.formats.precision import HOST_DTYPES
from npuc.targets.nvdla.program.artefact import Contents


def stored(program: Program, tensor: str) -> Stored | None:
    """The place of a complete tensor; None for an image or a tensor that only the host has.

    Raises ArtefactError (E502) if npuc did not write the program.
    """
    contents = Contents.of(program.manifest)
    move = next((each for each in contents.moves if each.tensor == tensor and not each.place.pixels), None)
    if move is None:
        return None
    cube, lanes = move.cube(contents.machine), move.place.lane_numbers

    def unpack(data: Array) -> Array:
        values = feature.unpack(cube, data)[lanes]
        return np.ascontiguousarray(values, HOST_DTYPES[cube.precision]).reshape(move.shape)

    return Stored(f"memory from {move.place.address:#x}", cube.bytes, unpack)
