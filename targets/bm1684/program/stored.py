"""The words of a tensor in system memory, as gdma_32bit_cpy_L2S stores them."""

from __future__ import annotations

from math import prod

from npuc.program import Program
from npuc.target import Stored
from npuc.targets.bm1684.program.artefact import ELEMENT, Contents, in_words, of_words


def stored(program: Program, tensor: str) -> Stored | None:
    """The words of an input, an output, or a layer's result copied from local memory without gaps.

    8-bit integers have four images per word (4N). Raises ArtefactError (E502) if the program is not one that
    npuc wrote.
    """
    placed = {each.tensor: each for each in Contents.of(program.manifest).placements}.get(tensor)
    result = {each.tensor: each for each in Contents.observed(program.manifest)}.get(tensor)
    if placed is not None:
        shape, dtype, where = placed.shape, placed.dtype, f"region {placed.region}, byte {placed.address}"
    elif result is not None:
        shape, dtype, where = result.shape, result.dtype, f"NPU {result.npu}, byte {result.offset}"
    else:
        return None
    return Stored(where, ELEMENT * prod(in_words(shape, dtype)), lambda data: of_words(data, shape, dtype))
