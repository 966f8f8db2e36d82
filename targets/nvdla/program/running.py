"""Runs a program step by step: host steps in numpy, segments on the functional model.

The model sees only register writes and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from npuc.errors import ArtefactError
from npuc.host.step import outputs_among
from npuc.ir import Array
from npuc.program import Program
from npuc.running import one_by_one
from npuc.storage.records import damage_error, read
from npuc.target import Observer
from npuc.targets.nvdla.formats import feature, pixels
from npuc.targets.nvdla.formats.precision import HOST_DTYPES, LOADED, round_to_precision
from npuc.targets.nvdla.machine.parameters import SECOND, SRAM_BASE
from npuc.targets.nvdla.model import ChipModel, DeviceMemory
from npuc.targets.nvdla.program.artefact import Contents, Segment, TensorMove

EXACT_PRODUCTS = 1 << 29
"""Products per sample up to which fp16 is bit-exact by default: half a minute of simulation."""


def _macs(program: Program) -> int:
    """Multiply-accumulates according to the report; 0 without a report."""
    return read(int, program.report["macs"], "report.macs") if "report" in program.manifest else 0


class Runner:
    """A program ready to run on samples.

    quick: sum fp16 convolutions in double precision instead of bit-exactly; always so for programs with more than
    EXACT_PRODUCTS multiply-accumulates.
    """

    def __init__(self, program: Program, *, quick: bool = False) -> None:
        few = _macs(program) <= EXACT_PRODUCTS
        self.exact = few and not quick
        self.contents = Contents.of(program.manifest)
        self.outputs, self.precision = program.outputs, program.precision
        self.files = program.files
        self.commands = self.contents.commands(program)

    def expect_exact(self, remedy: str) -> None:
        """Raises ArtefactError (E506) for an fp16 program that is not simulated to the last bit."""
        if self.precision == "fp16" and not self.exact:
            reason = "npuc does not simulate this program to the last bit of fp16"
            raise ArtefactError("E506", reason, limit=f"{EXACT_PRODUCTS} products", remedy=remedy)

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        return one_by_one(self._one, feeds, observe)

    def _one(self, feeds: Mapping[str, Array], observe: Observer | None) -> dict[str, Array]:
        """The outputs of one sample."""
        tensors = dict(feeds)
        nvdla = ChipModel(self.contents.machine, self._memory(), exact=self.exact)
        for step in self.contents.steps:
            if isinstance(step, Segment):
                self._segment(step, nvdla, tensors, observe)
            else:
                step.run(tensors)
                if observe is not None:
                    for name in step.outputs:
                        if str(tensors[name].dtype) in ("int8", "int16"):
                            observe(name, tensors[name])
        return outputs_among(tensors, self.outputs)

    def _memory(self) -> DeviceMemory:
        """Memory before the first step: the images, and zeros elsewhere."""
        dram = self.contents.dram
        second = self.contents.machine.sram_bytes
        memory = DeviceMemory.zeros(dram.base, dram.bytes, (SECOND + SRAM_BASE, second) if second else None)
        for image in dram.images:
            memory.write(image.address, image.data(self.files))
        return memory

    def _segment(
        self, segment: Segment, nvdla: ChipModel, tensors: dict[str, Array], observe: Observer | None
    ) -> None:
        """Loads, runs and stores a segment."""
        for move in segment.loads:
            self._load(move, nvdla.memory, tensors)
        end = segment.start + segment.count
        if not 0 <= segment.start <= end <= len(self.commands):
            raise damage_error(f"commands {segment.start}..{end}")
        at = segment.start
        for each in self.contents.operations:
            if segment.start <= each.start and at <= each.start + each.count <= end:
                nvdla.execute(self.commands[at : each.start + each.count])
                at = each.start + each.count
                if observe is not None and each.result is not None:
                    observe(each.result.tensor, self._store(each.result, nvdla.memory))
        nvdla.execute(self.commands[at:end])
        tensors.update({move.tensor: self._store(move, nvdla.memory) for move in segment.stores})

    def _load(self, move: TensorMove, memory: DeviceMemory, tensors: Mapping[str, Array]) -> None:
        """Copies a host tensor (1, 1, C, H, W) into memory; lanes without a channel become 0."""
        found = tensors.get(move.tensor)
        size, precision = move.bytes(self.contents.machine), move.place.precision
        if found is None or found.dtype != LOADED[precision] or found[0].shape != move.shape:
            raise damage_error("no such tensor to load", tensor=move.tensor)
        if found.size != prod(move.map_shape):
            reason = f"the program loads {prod(move.map_shape)} elements of {found.size}"
            raise ArtefactError("E502", reason, tensor=move.tensor, limit="all of the tensor")
        values = round_to_precision(found.reshape(move.map_shape), precision)
        if move.place.pixels:
            pixels.store(move.image(), values, self._view(move, size, memory), move.place.line_stride)
            return
        cube = move.cube(self.contents.machine)
        filled = np.zeros((cube.channels, cube.height, cube.width), values.dtype)
        filled[move.place.lane_numbers] = values
        feature.store(cube, filled, self._view(move, size, memory))

    def _store(self, move: TensorMove, memory: DeviceMemory) -> Array:
        """A tensor (1, *shape) read from memory."""
        cube = move.cube(self.contents.machine)
        values = feature.unpack(cube, self._view(move, cube.bytes, memory))[move.place.lane_numbers]
        return np.ascontiguousarray(values, HOST_DTYPES[cube.precision]).reshape(1, *move.shape)

    def _view(self, move: TensorMove, size: int, memory: DeviceMemory) -> Array:
        at = move.place.address
        found = memory.view(at + SECOND if self.contents.machine.in_sram(at) else at, size)
        if found is None:
            raise ArtefactError(
                "E503", f"a tensor at {move.place.address:#x} lies outside memory", tensor=move.tensor
            )
        return found
