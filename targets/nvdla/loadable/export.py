"""The loadable of a compiled program, and the scales that the user needs, as files.

Before it is returned, the loadable is read back, interpreted like the stock firmware and run on the functional
model with a sample of every kind: the engine must compute the program's own results, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array, TensorType
from npuc.program import Program
from npuc.samples.loading import KINDS, varied
from npuc.target import Observer
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla.formats import feature
from npuc.targets.nvdla.loadable import schema
from npuc.targets.nvdla.loadable.composing import composed
from npuc.targets.nvdla.loadable.execution import Executed, run
from npuc.targets.nvdla.loadable.places import MAPS
from npuc.targets.nvdla.loadable.ports import Ports, ports_of, scales
from npuc.targets.nvdla.machine.commands import Write
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model import Nvdla
from npuc.targets.nvdla.program.artefact import Contents, Segment
from npuc.targets.nvdla.program.running import Runner

FILE = "network.nvdla"
SEED = 0
REMEDY = "export as nvdla-trace or c"


def files(program: Program) -> dict[str, bytes]:
    """network.nvdla and tensors.json. Raises ArtefactError (E506) for a program that no loadable can express."""
    _expect_one_memory(program)
    ports = ports_of(program)
    data = loadables.write(composed(program, ports))
    _expect_same(program, ports, loadables.read(data))
    return {FILE: data, "tensors.json": (json.dumps(scales(ports), indent=2) + "\n").encode()}


def _expect_one_memory(program: Program) -> None:
    """Raises ArtefactError (E506) if the second memory is used.

    A loadable can name it (domain 1), but not state its size, and the stock driver's size is unknown.
    """
    contents = Contents.of(program.manifest)
    writes = (each for each in contents.commands(program) if isinstance(each, Write))
    if any(contents.machine.in_sram(each.value) for each in writes):
        raise ArtefactError(
            "E506",
            f"maps lie in the second memory of {contents.machine.name}",
            limit="one memory, which the stock driver allocates",
            remedy="compile for a machine without sram_bytes, or export as nvdla-trace or c",
        )


class _Recorder(Runner):
    """A runner that records what is loaded, as bytes, and what is stored."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.given: dict[str, bytes] = {}
        self.wanted: dict[str, Array] = {}

    def _segment(
        self, segment: Segment, nvdla: Nvdla, tensors: dict[str, Array], observe: Observer | None
    ) -> None:
        for move in segment.loads:
            self._load(move, nvdla.memory, tensors)
            size = move.bytes(self.contents.machine)
            self.given[move.tensor] = nvdla.memory.read(move.place.address, size)
        super()._segment(segment, nvdla, tensors, observe)
        self.wanted |= {move.tensor: tensors[move.tensor] for move in segment.stores}


def _bound(recorder: _Recorder, ports: Ports) -> dict[str, bytes]:
    """The contents of the input buffers, by name."""
    return {port.name: recorder.given[port.move.tensor] for port in ports.inputs}


def given_of(program: Program, ports: Ports, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """The contents of the input buffers for one sample, by name."""
    recorder = _Recorder(program)
    recorder(inputs)
    return _bound(recorder, ports)


def executed(loadable: schema.Loadable, machine: Machine, given: Mapping[str, bytes]) -> Executed:
    """The firmware's run. Raises ArtefactError (E506) if it would hang or overwrite its own results."""
    try:
        return run(loadable, machine, given)
    except ArtefactError as error:
        reason = f"the stock firmware would not run it: {error.problems[0].reason}"
        raise ArtefactError(
            "E506", reason, limit="the order in which it runs operations", remedy=REMEDY
        ) from error


def _expect_same(program: Program, ports: Ports, loadable: schema.Loadable) -> None:
    """Raises ArtefactError (E506) if the firmware's results would differ from the program's."""
    inputs = {port.name: TensorType(port.shape, port.dtype) for port in program.inputs}
    recorder = _Recorder(program)
    for sample in varied(inputs, seed=SEED).first(len(KINDS)).batches(1):
        recorder(sample.inputs)
        _expect_recorded(recorder, ports, loadable)


def _expect_recorded(recorder: _Recorder, ports: Ports, loadable: schema.Loadable) -> None:
    """The same for the recorded sample."""
    contents = recorder.contents
    given = _bound(recorder, ports)
    after = executed(loadable, contents.machine, given)
    for port in ports.outputs:
        cube = port.move.cube(contents.machine)
        offset = port.move.place.address - contents.dram.base
        data = after.read(MAPS, offset, cube.bytes) if port.softmax else after.output(port.name)
        found = feature.unpack(cube, np.frombuffer(data, np.uint8))
        wrong = int(np.count_nonzero(found.ravel() != recorder.wanted[port.move.tensor].ravel()))
        if wrong:
            raise ArtefactError(
                "E506",
                f"the stock firmware would compute {wrong} elements otherwise",
                tensor=port.move.tensor,
                limit="what its descriptors express",
                remedy=REMEDY,
            )
