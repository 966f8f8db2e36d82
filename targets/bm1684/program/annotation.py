"""Annotations of weights.bin: the calls of the kernel that load from it."""

from __future__ import annotations

from collections.abc import Iterator

from npuc.inspect.annotation import MemoryAnnotation
from npuc.program import Program
from npuc.targets.bm1684.lowering.kernel import System
from npuc.targets.bm1684.program.artefact import Contents, instructions


def memory_annotations(program: Program, name: str) -> Iterator[MemoryAnnotation]:
    """An annotation per call that reads a region's file. Raises ArtefactError (E502) for a damaged manifest."""
    regions = [region.name for region in Contents.of(program.manifest).regions if region.file == name]
    for each in instructions(program):
        for arg in each.call.args:
            if isinstance(arg, System) and arg.region in regions:
                yield MemoryAnnotation(
                    arg.offset, f"call {each.index} okk_{each.call.name} for {each.tensor}", each.nodes
                )
