"""The self test of a program in C: stored samples, the chip model's results for them, and the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from npuc.host.c_text import sources, vectors
from npuc.ir import Array
from npuc.program import Program, count_of
from npuc.targets.easynpu.export.c_export import SOURCES
from npuc.targets.easynpu.simulate.running import Runner

FOLDER = Path(__file__).parent / "c_self_test"
MAKE = """
# Stored samples, compared with what npuc simulated: make check
CHECKED = $(filter-out test/main.c,$(SOURCES)) npuc_self_test.c npuc_vectors.c test/self_test.c

npuc_check: $(CHECKED) $(HEADERS) npuc_self_test.h
\t$(CC) $(CFLAGS) -I. -o $@ $(CHECKED) -lm

check: npuc_check
\t./npuc_check

.PHONY: check
"""


def files(program: Program, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """npuc_vectors.c, the comparison, its main on the machine model, and a Makefile with `make check`.

    inputs: (samples, *shape) by name. The expected outputs come from the chip model, which reads only the
    artefact.
    """
    given = {port.name: inputs[port.name].astype(port.dtype, copy=False) for port in program.inputs}
    outputs = Runner(program)(given)
    count = count_of(given) if given else 1
    pairs = [
        (
            [given[port.name][sample] for port in program.inputs],
            [outputs[port.name][sample].astype(port.dtype, copy=False) for port in program.outputs],
        )
        for sample in range(count)
    ]
    return {
        **sources(FOLDER),
        "npuc_vectors.c": vectors(program.model.name, pairs, ("npuc_vector_count", count)),
        "Makefile": (SOURCES / "Makefile").read_bytes() + MAKE.encode(),
    }
