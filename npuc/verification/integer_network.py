"""The integer network of a program under onnxruntime, as a runner in place of its words."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.ir import Array
from npuc.program import Program
from npuc.reference import session
from npuc.regions.artefact import is_composite
from npuc.regions.running import CompositeRunner, sample_by_sample
from npuc.storage.pieces import contents_of
from npuc.target import FLOATING, Observer, Runner
from npuc.verification.bits import as_numbers
from npuc.verification.described import foreign_evidence, network


def has_integer_network(program: Program) -> bool:
    """Whether the program computes in integers, bit for bit as a network in ONNX."""
    return program.precision not in FLOATING


def integer_runner(program: Program) -> Runner:
    """A runner of the integer network; of each part between host regions, which run as they do beside words.

    program: with its evidence, which may come from anyone. Raises ArtefactError (E502) for evidence that npuc did
    not write.
    """
    if is_composite(program):
        return CompositeRunner(program, integer_runner)
    with foreign_evidence():
        evidence = contents_of(program.evidence)["reference.onnx"]
        model, weights = network(evidence)
        opened = session(evidence if isinstance(evidence, bytes) else model, weights, confined=True)
    run = sample_by_sample(opened, [port.name for port in program.outputs])

    def numbers(feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        with foreign_evidence():
            return run({name: as_numbers(values) for name, values in feeds.items()}, observe)

    return numbers
