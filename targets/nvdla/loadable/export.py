"""The loadable of a compiled program, the scales that the user needs, and its self test, as files.

Before it is returned, the loadable is read back, interpreted like the stock runtime and firmware and run on the
functional model with a sample of every kind: the engine must compute the program's own results, bit for bit. The
self test has the runtime's buffers for stored samples, and the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.host.c_text import FOLDER, comparing
from npuc.ir import Array, TensorType
from npuc.program import Program, count_of
from npuc.samples.loading import KINDS, varied_samples
from npuc.target import Observer
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla.firmware.structures import size, unpack
from npuc.targets.nvdla.formats import feature
from npuc.targets.nvdla.formats.alignment import align
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.loadable import addresses, content, emulation, run_of, schema
from npuc.targets.nvdla.loadable.composing import compose
from npuc.targets.nvdla.loadable.places import MAPS, BoundPort, Ports, ports_of, scales
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import Write
from npuc.targets.nvdla.model import ChipModel, DeviceMemory
from npuc.targets.nvdla.program.artefact import Contents, Segment
from npuc.targets.nvdla.program.running import Runner

BASE = 0x8000_0000
EMULATED = {emulation.INT8: np.int8, emulation.INT8_SMALL: np.int8, emulation.FP16: np.float16}


@frozen
class Executed:
    """Memory after all tasks."""

    loadable: schema.Loadable
    memory: DeviceMemory
    bases: Mapping[int, int]

    def read(self, memory: int, offset: int, count: int) -> bytes:
        """Bytes of a memory, by its id."""
        return self.memory.read(self.bases[memory] + offset, count)

    def output(self, name: str) -> bytes:
        """An output's buffer, by the name of its tensor."""
        tensor = next(each for each in self.loadable.tensor_desc_list if each.name == name)
        return self.read(tensor.mem_id, tensor.offset, tensor.size)


def run(loadable: schema.Loadable, machine: Machine, inputs: Mapping[str, bytes]) -> Executed:
    """Runs all tasks on the inputs' buffers, given by tensor name.

    Raises ArtefactError: E502 for invalid descriptors, E503 where the hardware would hang or race.
    """
    bases = _bases(loadable)
    memory = DeviceMemory.zero_pages((bases[each.id], max(each.size, 1)) for each in loadable.memory_list)
    blobs = {each.name: each.data for each in loadable.blobs}
    for each in loadable.memory_list:
        for name, offset in zip(each.contents, each.offsets, strict=True):
            memory.write(bases[each.id] + offset, blobs[name])
    named = {each.name: each for each in loadable.tensor_desc_list}
    for name, data in inputs.items():
        memory.write(bases[named[name].mem_id] + named[name].offset, data)
    nvdla = ChipModel(machine, memory)
    tasks_by_id = {each.id: each for each in loadable.task_list}
    for number in (number for each in loadable.submit_list for number in each.task_id):
        task = tasks_by_id[number]
        (_engine if task.interface == schema.DLA else _cpu)(loadable, task, nvdla, bases)
    return Executed(loadable, memory, bases)


def _bases(loadable: schema.Loadable) -> dict[int, int]:
    """The address of every memory, one behind the other."""
    found: dict[int, int] = {}
    at = BASE
    for each in loadable.memory_list:
        found[each.id] = at
        at += align(max(each.size, 1), max(each.alignment, schema.ALIGNMENT))
    return found


def _engine(loadable: schema.Loadable, task: schema.Task, nvdla: ChipModel, bases: Mapping[int, int]) -> None:
    """Runs the firmware's register writes on the functional model."""
    nvdla.execute(run_of(loadable, task, nvdla.machine, bases.__getitem__))


def _cpu(loadable: schema.Loadable, task: schema.Task, nvdla: ChipModel, bases: Mapping[int, int]) -> None:
    """Runs the runtime's emulation. Raises ArtefactError (E502) for anything but softmax."""
    address = addresses(loadable, task, bases.__getitem__)
    network = unpack(emulation.EmulatedNetwork, content(loadable, task, 0))
    operations = content(loadable, task, network.operations)
    buffers = content(loadable, task, network.buffers)
    for at in range(network.operation_count):
        operation = unpack(emulation.EmulatedOperation, operations, at * size(emulation.EmulatedOperation))
        both = unpack(emulation.EmulatedBuffers, buffers, at * size(emulation.EmulatedBuffers))
        if operation.kind != emulation.SOFTMAX or both.source.format not in EMULATED:
            raise ArtefactError("E502", f"CPU operation {operation.kind}", limit="softmax of int8 or fp16")
        dtype = np.dtype(EMULATED[both.source.format])
        place = address(both.source.address) + both.source.offset
        values = np.frombuffer(nvdla.memory.read(place, both.source.channels * dtype.itemsize), dtype)
        result = emulation.softmax(operation, values)
        nvdla.memory.write(address(both.result.address) + both.result.offset, result.tobytes())


FILE = "network.nvdla"
SEED = 0
REMEDY = "export as nvdla-trace or c"


def files(program: Program) -> dict[str, bytes]:
    """network.nvdla and tensors.json. Raises ArtefactError (E506) for a program that no loadable can express."""
    _expect_one_memory(program)
    ports = ports_of(program)
    data = loadables.write(compose(program, ports))
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
        self, segment: Segment, nvdla: ChipModel, tensors: dict[str, Array], observe: Observer | None
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


def _given_of(program: Program, ports: Ports, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """The contents of the input buffers for one sample, by name."""
    recorder = _Recorder(program)
    recorder(inputs)
    return _bound(recorder, ports)


def execute(loadable: schema.Loadable, machine: Machine, given: Mapping[str, bytes]) -> Executed:
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
    for sample in varied_samples(inputs, seed=SEED).first(len(KINDS)).batches(1):
        recorder(sample.inputs)
        _expect_equal_results(recorder, ports, loadable)


def _expect_equal_results(recorder: _Recorder, ports: Ports, loadable: schema.Loadable) -> None:
    """The same for the recorded sample."""
    contents = recorder.contents
    given = _bound(recorder, ports)
    after = execute(loadable, contents.machine, given)
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


README = """\
# Self test of network.nvdla

`{folder}/K/input_N.bin` is what the buffer of the input with bind_id N holds for sample K, as it lies in memory
(self_test.json has names, shapes and strides). For each sample: load network.nvdla in the runtime, copy the inputs
into the buffers that are bound, submit, and write the buffers of the outputs to files. Then

```
{commands}
```

`make LDLIBS=-lm npuc_compare` builds the comparison wherever there is a C compiler; masks leave out the lanes of
the last atoms that hold no channel. Expected outputs are those of npuc's functional model, which runs the
descriptors of the loadable as the stock firmware does.
"""


def self_test_files(program: Program, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """Buffers of inputs and outputs by sample, self_test.json, README.md and npuc_compare.c.

    inputs: (samples, *shape) by name. Raises ArtefactError (E506) for a program that no loadable can express, and
    for fp16 programs that the model does not compute bit-exactly.
    """
    Runner(program).expect_exact(REMEDY)
    ports = ports_of(program)
    loadable = loadables.read(loadables.write(compose(program, ports)))
    machine = Contents.of(program.manifest).machine
    made: dict[str, bytes] = {}
    for sample in range(count_of(inputs)):
        given = _given_of(program, ports, {name: values[sample : sample + 1] for name, values in inputs.items()})
        after = execute(loadable, machine, given)
        for number, port in enumerate(ports.inputs):
            made[f"{FOLDER}/{sample}/input_{number}.bin"] = given[port.name]
        for number, port in enumerate(ports.outputs):
            made[f"{FOLDER}/{sample}/output_{number}.bin"] = after.output(port.name)
    for number, port in enumerate(ports.outputs):
        made[f"{FOLDER}/mask_{number}.bin"] = _mask(port, machine)
    readme = README.format(folder=FOLDER, commands="\n".join(_commands(ports)))
    described = {"inputs": _rows(ports.inputs), "outputs": _rows(ports.outputs)}
    return {
        **made,
        **comparing(),
        "README.md": readme.encode(),
        "self_test.json": (json.dumps(described, indent=2) + "\n").encode(),
    }


def _commands(ports: Ports) -> Iterator[str]:
    for number, port in enumerate(ports.outputs):
        most_apart, kind = int(port.softmax), DTYPES[port.move.place.precision]
        expected, mask = f"{FOLDER}/K/output_{number}.bin", f"{FOLDER}/mask_{number}.bin"
        yield f"./npuc_compare found_{number}.bin {expected} {kind} {most_apart} {mask}"


def _mask(port: BoundPort, machine: Machine) -> bytes:
    """A byte for each element of an output's buffer: 1 if it belongs to the tensor."""
    cube = port.move.cube(machine)
    filled = np.zeros((cube.channels, cube.height, cube.width), DTYPES[cube.precision])
    filled[port.move.place.lane_numbers] = 1
    buffer = np.zeros(cube.bytes, np.uint8)
    feature.store(cube, filled, buffer)
    return (buffer.view(filled.dtype) != 0).astype(np.uint8).tobytes()


def _rows(ports: Sequence[BoundPort]) -> list[dict[str, Any]]:
    return [
        {
            "name": port.name,
            "bind_id": number,
            "shape": list(port.move.shape),
            "precision": port.move.place.precision,
            "pixels": port.move.place.pixels or None,
            "line_stride": port.move.place.line_stride,
            "surface_stride": port.move.place.surface_stride,
            "room": 1 if port.softmax else 0,
        }
        for number, port in enumerate(ports)
    ]
