"""Options of `npuc compile` with a choice of values: those of all targets, and those that only some have."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.frozen import frozen

POWER_OF_TWO = "power-of-two"
SYNTHETIC = "synthetic"
"""In place of files: samples that npuc draws."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "level": ("0", "1", "2"),
    "method": ("mse", "output", "minmax", "percentile", "entropy"),
    "scales": ("free", POWER_OF_TWO),
    "mixed": ("off", "auto"),
    "proof": ("off", "one", "all"),
    "input_data": ("frame", "float"),
}
"""Values of the options that all targets share."""


OWN_METRIC = "write it as a metric of your own: --metric FILE.py:FUNCTION"
REMOVED: Mapping[str, str] = {
    "max_partitions": "name the nodes that are to run on the host: --deny",
    "objective cycles": "the default, time, counts the cycles of computation and of transfers",
    "fallback": "--strict refuses what the target cannot run; without it the host runs that",
    "stepping": "--chip-model rtl counts the cycles of the hardware, and run --trace F.vcd writes its waveforms",
    "full_names": "npuc dump --json has every name in full",
    "layout": OWN_METRIC,
    "box_format": OWN_METRIC,
    "score_threshold": OWN_METRIC,
    "nms_iou": OWN_METRIC,
    "background": OWN_METRIC,
    "score_function": OWN_METRIC,
    "blank": OWN_METRIC,
}
"""Options that the last version had, and what to use instead: this version refuses them with that."""


@frozen
class Flag:
    """An option declared by a target and accepted by the command line and `npuc.compile`: `--isa documented`."""

    name: str
    values: tuple[str, ...]
    """The default comes first."""
    help: str
    """A sentence for `npuc compile --help`."""
