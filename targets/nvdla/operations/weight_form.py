"""The form of a convolution's weights: the types of table 34 except deconvolution, with their options.

Source: in-memory formats, Weight Format, table 34 (Weight formats and options).
"""

from __future__ import annotations

from npuc.errors import UnsupportedOperator
from npuc.frozen import frozen
from npuc.targets.nvdla.machine.parameters import Machine


@frozen
class WeightForm:
    """A type of weights with its options.

    >>> str(WeightForm()), str(WeightForm(compressed=True)), str(WeightForm("image", 2, True))
    ('direct', 'sparse', 'image, 2 lines, sparse')
    """

    kind: str = "direct"
    """direct, image or winograd."""
    lines: int = 1
    """Lines of an image that post-extension joins: 1, 2 or 4."""
    compressed: bool = False
    zeros: int = 0
    """Columns of zeros behind those of an image's kernel."""
    planes: int = 1
    """Planes of an image."""

    def __str__(self) -> str:
        parts = [self.kind, *([f"{self.lines} lines"] if self.lines > 1 else [])]
        parts += [f"{self.planes} planes"] if self.planes > 1 else []
        parts += [f"columns of zeros: {self.zeros}"] if self.zeros else []
        if self.compressed:
            parts = ["sparse"] if parts == ["direct"] else [*parts, "sparse"]
        return ", ".join(parts)


DIRECT = WeightForm()


def asked_forms(machine: Machine) -> tuple[str, ...]:
    """The values of `weights`: auto chooses by cost; direct has neither images nor any option."""
    winograd, sparse = ["winograd"] * machine.winograd, ["sparse"] * machine.compression
    return ("auto", "direct", *winograd, *sparse)


def expect_asked(machine: Machine, asked: str) -> None:
    """Raises UnsupportedOperator (E202) if the machine lacks the form that is asked for."""
    if asked not in asked_forms(machine):
        raise UnsupportedOperator(
            "E202",
            f"machine {machine.name} has no {asked} weights",
            limit=", ".join(asked_forms(machine)),
            remedy="leave weights out",
        )
