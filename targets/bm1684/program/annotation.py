"""What the bytes of weights.bin hold: what the calls of the kernel fetch from there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npuc.annotation import Held
from npuc.program import Program
from npuc.targets.bm1684.program.artefact import Contents


def held(program: Program, name: str) -> Iterator[Held]:
    """Where a call's source starts in a region's file. Raises ArtefactError (E502) for a damaged manifest."""
    regions = [region.name for region in Contents.of(program.manifest).regions if region.file == name]
    for call in Contents.instructions(program.manifest):
        for region, offset in re.findall(r"SYSTEM\((\w+), 0x([0-9a-f]+)\)", call.text):
            if region in regions:
                what = f"call {call.index} {call.text.partition('(')[0]} for {call.tensor}"
                yield Held(int(offset, 16), what, call.nodes)
