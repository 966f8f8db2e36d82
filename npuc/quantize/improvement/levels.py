"""The optimisation levels: -O0 the least, -O1 the best within about twice its time, -O2 everything."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.frozen import frozen


@frozen
class SearchVariant:
    """A way to quantise a network: calibration method, zero points where they help, share of equalisation, and
    whether outlier channels are split.

    alone: judged as it is and not improved, since improving takes most of a level's time.
    """

    method: str
    share: float | None
    offsets: bool = True
    split: bool = False
    alone: bool = False

    def __str__(self) -> str:
        parts = [self.method]
        parts += ["offsets"] if self.offsets else []
        parts += [] if self.share is None else [f"equalisation {self.share:g}"]
        parts += ["outlier channels split"] if self.split else []
        return ", ".join(parts)


@frozen
class Level:
    """The steps of a level, taken after those of the level below it.

    method: of calibration. variants: alternatives that are tried. samples: the most calibration samples that
    improvements learn from. proposals: sets of them, tried in lockstep; the first that is kept ends the search
    unless `thorough`. depth: the most inputs of an output channel whose weights are rounded in turn. improved: the
    number of variants, the best on their own, on which the proposals are tried.
    """

    method: str
    variants: tuple[SearchVariant, ...] = ()
    samples: int = 0
    proposals: tuple[tuple[str, ...], ...] = ()
    thorough: bool = False
    depth: int = 0
    below: Level | None = None
    improved: int = 3

    @property
    def rungs(self) -> tuple[Level, ...]:
        """The levels from the lowest to this one: results of lower levels are candidates of this one."""
        return (*(self.below.rungs if self.below else ()), self)


BIAS = ("bias by weights",)
BIASES = ("bias by weights", "bias by results")
ALL = (*BIASES, "rounding in turn")

LEAST = Level("minmax")
USUAL = Level(
    "mse",
    (SearchVariant("mse", None, alone=True), SearchVariant("mse", 0.5)),
    samples=16,
    proposals=(ALL,),
    depth=640,
    below=LEAST,
)
EVERYTHING = Level(
    "mse",
    (
        *(SearchVariant(method, share) for method in ("mse", "output", "minmax") for share in (None, 0.5, 1.0)),
        SearchVariant("mse", None, split=True),
    ),
    samples=64,
    proposals=(ALL, BIASES, BIAS),
    thorough=True,
    depth=2304,
    below=USUAL,
)
LEVELS: Mapping[str, Level] = {"0": LEAST, "1": USUAL, "2": EVERYTHING}
"""The levels by the digit of -O."""
