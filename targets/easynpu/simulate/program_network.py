"""A program with its host steps as one network, from its inputs to its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any

import numpy as np

from npuc.errors import ArtefactError, ModelError
from npuc.frozen import frozen
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.program import Port
from npuc.reference import integers_are_exact
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import Segment
from npuc.targets.easynpu.simulate.network import RAISED, Network
from npuc.targets.easynpu.simulate.origins import NotOneNetwork
from npuc.targets.easynpu.simulate.segment_network import HostTensor, Walk


@frozen
class ProgramNetwork:
    """A program as an open session."""

    session: Any
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    tensors: tuple[Sequence[str], Sequence[str]]
    """The session's own names of inputs and outputs."""

    def takes(self, feeds: Mapping[str, Array]) -> bool:
        """Whether the session can run on these inputs as the host steps do: NaN counts as 0 only there."""
        return all(
            name in feeds
            and feeds[name].dtype == np.float32
            and feeds[name].shape[1:] == shape
            and not np.isnan(feeds[name].min(initial=0))
            for name, shape in ((port.name, port.shape) for port in self.inputs)
        )

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape) float32."""
        given, wanted = self.tensors
        values = (feeds[port.name] for port in self.inputs)
        found = self.session.run(wanted, dict(zip(given, values, strict=True)))
        return {port.name: value for port, value in zip(self.outputs, found, strict=True)}


def program_network(
    steps: Sequence[HostStep | Segment],
    files: Mapping[str, bytes],
    machine: Machine,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
) -> ProgramNetwork | None:
    """The program as one network; None where segments or host steps are not part of one."""
    network = Network(quantised=integers_are_exact())
    walk = Walk(machine, files, network)
    try:
        for port in inputs:
            _expect(port.dtype == "float32" and prod(port.shape) > 0, "an input is not float32")
            walk.hosted[port.name] = HostTensor(network.input(port.shape), port.shape)
        for step in steps:
            if isinstance(step, Segment):
                walk.segment(step)
            else:
                (written,) = step.outputs
                walk.hosted[written] = _step(network, step, walk.of_host_step(step.inputs[0]))
        _expect(not walk.given, "a segment reads what no step computes")
        given = [walk.hosted[port.name].name for port in inputs]
        wanted: list[str] = []
        for port in outputs:
            found = walk.of_host_step(port.name)
            _expect(found.shape == port.shape and not found.raised, "an output is not float32")
            wanted.append(network.output(found.name, port.shape))
        return ProgramNetwork(network.session(), inputs, outputs, (given, wanted))
    except (NotOneNetwork, ArtefactError, ModelError, LookupError, TypeError, ValueError):
        return None


def _step(network: Network, step: HostStep, x: HostTensor) -> HostTensor:
    """The result of a host step. Raises NotOneNetwork for operators other than conversions and Softmax."""
    match step.op:
        case "Transpose":
            order = tuple(int(axis) for axis in step.attrs["perm"])
            _expect(sorted(order) == [*range(len(x.shape))], "a Transpose of other axes")
            return _transposed(network, x, order)
        case "Reshape":
            shape = tuple(int(extent) for extent in step.attrs["shape"])
            _expect(prod(shape) == prod(x.shape), "a reshape to another size")
            return HostTensor(network.reshaped(x.name, shape), shape, x.raised)
        case "QuantizeLinear" if x.moved is not None:  # bytes move faster
            return _transposed(network, _step(network, step, x.moved[0]), x.moved[1])
        case "QuantizeLinear" | "DequantizeLinear":
            scale, zero = step.conversion_numbers()
            to_bytes = step.op == "QuantizeLinear"
            _expect(x.raised != to_bytes and step.attrs.get("dtype", "int8") == "int8", "another type")
            _expect(0 < float(np.float32(scale)) < inf, "a scale that is none")
            _expect(-RAISED <= zero < RAISED, "a zero point that is not int8")
            numbers = network.scalar(scale), network.byte(zero + RAISED)
            return HostTensor(network.node(step.op, x.name, *numbers), x.shape, to_bytes)
        case "Softmax" if step.attrs["axis"] == len(x.shape) - 1 and not x.raised:
            return HostTensor(network.node("Softmax", x.name, axis=len(x.shape)), x.shape)
        case op:
            raise NotOneNetwork(f"the host computes {op}")


def _transposed(network: Network, x: HostTensor, order: tuple[int, ...]) -> HostTensor:
    """The tensor with its axes in another order. Axes of extent 1 are left out of the Transpose."""
    kept = [axis for axis in order if x.shape[axis] != 1]
    before, shape = sorted(kept), tuple(x.shape[axis] for axis in order)
    name = network.reshaped(x.name, [x.shape[axis] for axis in before])
    if kept != before:
        name = network.node("Transpose", name, perm=[0, *(before.index(axis) + 1 for axis in kept)])
    return HostTensor(network.reshaped(name, shape), shape, x.raised, (x, order))


def _expect(fits: bool, reason: str) -> None:
    if not fits:
        raise NotOneNetwork(reason)
