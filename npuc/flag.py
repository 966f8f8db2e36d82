"""Options of `npuc compile` with a choice of values: those of all targets, and those that only some have."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.frozen import frozen

FLOAT = "float"
"""No frame: a program takes what its model reads."""
POWER_OF_TWO = "power-of-two"
SYNTHETIC = "synthetic"
"""In place of files: samples that npuc draws."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "level": ("0", "1", "2"),
    "method": ("mse", "output", "minmax", "percentile", "entropy"),
    "scales": ("free", POWER_OF_TWO),
    "proof": ("off", "one", "all"),
    "mixed": ("off", "auto"),
}
"""Values of the options that all targets share."""
MIXED = "mixed"
"""A precision: int8, but for a few layers, which are in int16 or run on the host in float."""

OWN_METRIC = "write it as a metric of your own: --metric FILE.py:FUNCTION"
REMOVED: Mapping[str, str] = {
    "max_partitions": "name the nodes that are to run on the host: --deny",
    "objective cycles": "the default, time, counts the cycles of computation and of transfers",
    "fallback": "--strict refuses what the target cannot run; without it the host runs that",
    "stepping": "--chip-model rtl counts the cycles of the hardware, and run --trace F.vcd writes its waveforms",
    "input_data": 'frame = "float" in the description of --input',
    "full_names": "npuc dump --json has every name in full",
    "time_limit": "the environment variable NPUC_TIME_LIMIT has the seconds",
    "custom_ops": "the environment variable NPUC_CUSTOM_OPS names the library",
    "okk_libs": "the environment variable NPUC_OKK_LIBS names the folder",
    "qdq": "the row of the integer network is what npuc quantize writes",
    "truth": "labels are the truth if the data has some, else fp32 is",
    "sort": "--bisect names the layer that loses the most; --json has the errors of all",
    "grep": "npuc dump OUT | grep TEXT, or --layer NAME",
    "layout": OWN_METRIC,
    "box_format": OWN_METRIC,
    "score_threshold": OWN_METRIC,
    "nms_iou": OWN_METRIC,
    "background": OWN_METRIC,
    "score_function": OWN_METRIC,
    "blank": OWN_METRIC,
}
"""Options that the last version had, and what to use instead: this version refuses them with that."""
KEYWORDS: Mapping[str, str] = {
    "objective": "a keyword of Python's npuc.compile",
    "weights": "a keyword of Python's npuc.compile",
    "scales": "a key of machine files, and a keyword of Python's npuc.compile",
}
"""Options of a compile that the command line does not have, and what they are instead."""


@frozen
class Flag:
    """An option declared by a target and accepted by the command line and `npuc.compile`: `--isa documented`."""

    name: str
    values: tuple[str, ...]
    """The default comes first."""
    help: str
    """A sentence for `npuc compile --help`."""
