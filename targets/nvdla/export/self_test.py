"""The self test of a program in C: samples with what every segment loads and stores, and the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from npuc.host.c_text import sources, vectors
from npuc.ir import Array
from npuc.program import Program
from npuc.target import Observer
from npuc.targets.nvdla.export.c_export import SOURCES
from npuc.targets.nvdla.formats.precision import received
from npuc.targets.nvdla.model import ChipModel
from npuc.targets.nvdla.program.artefact import Segment, TensorMove
from npuc.targets.nvdla.program.running import Runner

FOLDER = Path(__file__).parent / "c_self_test"
MAKE = """
# The same with the samples and the comparison of npuc_self_test.h
OBJECTS += npuc_self_test.o npuc_vectors.o
HEADERS += npuc_self_test.h
"""


class _MoveRecorder(Runner):
    """A runner that records what segments load and store, in the form npuc_put takes."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.pairs: list[tuple[list[Array], list[Array]]] = []

    def _segment(
        self, segment: Segment, nvdla: ChipModel, tensors: dict[str, Array], observe: Observer | None
    ) -> None:
        loads = _values(segment.loads, tensors)
        super()._segment(segment, nvdla, tensors, observe)
        self.pairs.append((loads, _values(segment.stores, tensors)))


def _values(moves: Sequence[TensorMove], tensors: Mapping[str, Array]) -> list[Array]:
    return [received(tensors[move.tensor].reshape(move.map_shape), move.place.precision) for move in moves]


def files(program: Program, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """npuc_vectors.c, the comparison, and a Makefile that builds both.

    inputs: (samples, *shape) by name. Expected values come from the functional model, which reads only the
    artefact. Raises ArtefactError (E506) for fp16 programs that the model does not compute bit-exactly.
    """
    recorder = _MoveRecorder(program)
    recorder.expect_exact("export a part of the network, or in int8")
    recorder(inputs)
    segments = len(recorder.contents.segments)
    count = len(recorder.pairs) // segments if segments else 0
    makefile = (SOURCES / "Makefile").read_text().replace("\nlibnpuc.a:", MAKE + "\nlibnpuc.a:", 1)
    return {
        **sources(FOLDER),
        "npuc_vectors.c": vectors(program.model.name, recorder.pairs, ("npuc_sample_count", count)),
        "Makefile": makefile.encode(),
    }
