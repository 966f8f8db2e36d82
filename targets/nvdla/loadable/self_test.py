"""The self test of a loadable: the runtime's buffers for stored samples, and the comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from npuc.host.c_text import FOLDER, comparing
from npuc.ir import Array
from npuc.program import Program, count_of
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla.formats import feature
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.loadable.composing import composed
from npuc.targets.nvdla.loadable.export import REMEDY, executed, given_of
from npuc.targets.nvdla.loadable.ports import BoundPort, Ports, ports_of
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.program.artefact import Contents
from npuc.targets.nvdla.program.running import Runner

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


def files(program: Program, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """Buffers of inputs and outputs by sample, self_test.json, README.md and npuc_compare.c.

    inputs: (samples, *shape) by name. Raises ArtefactError (E506) for a program that no loadable can express, and
    for fp16 programs that the model does not compute bit-exactly.
    """
    Runner(program).expect_exact(REMEDY)
    ports = ports_of(program)
    loadable = loadables.read(loadables.write(composed(program, ports)))
    machine = Contents.of(program.manifest).machine
    made: dict[str, bytes] = {}
    for sample in range(count_of(inputs)):
        given = given_of(program, ports, {name: values[sample : sample + 1] for name, values in inputs.items()})
        after = executed(loadable, machine, given)
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
        room, kind = int(port.softmax), DTYPES[port.move.place.precision]
        expected, mask = f"{FOLDER}/K/output_{number}.bin", f"{FOLDER}/mask_{number}.bin"
        yield f"./npuc_compare found_{number}.bin {expected} {kind} {room} {mask}"


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
