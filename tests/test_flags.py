"""Keywords of `npuc.compile`: the flags of the command line, by their names and with their values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

import npuc
from npuc.cli.compiling import compile_command
from npuc.flag import CHOICES, KEYWORDS, REMOVED
from npuc.flags import Flags, options_of
from npuc.target import Options, target

MODEL = Path(__file__).resolve().parents[1] / "models" / "digits.onnx"
OF_THE_COMMAND = {
    *("model", "target", "output", "calibration", "shapes", "cache", "dump_after", "memory_limit", "force"),
    *("verbose", "quiet", "as_json"),
}
"""What files, printing and processes are to the command line: Python has arguments of its own, or none."""


def test_every_flag_of_compile_is_a_keyword_with_the_same_values() -> None:
    parameters = {each.name: each for each in compile_command.params if each.name not in {*REMOVED, *KEYWORDS}}
    assert set(parameters) - OF_THE_COMMAND == set(Flags.__annotations__) - set(KEYWORDS)
    for name, values in CHOICES.items() - {("scales", CHOICES["scales"])}:
        kind = parameters[name].type
        assert isinstance(kind, click.Choice) and tuple(kind.choices) == values


def test_keywords_become_options() -> None:
    found = options_of(
        target("nvdla-full"),
        None,
        {
            "precision": "mixed",
            "weights": "winograd",
            "level": 2,
            "bind": {"s": 3},
            "deny": "Conv",
        },
    )
    wanted = Options(
        precision="int8", flags={"weights": "winograd"}, level="2", bind=(("s", 3.0),), deny=("Conv",), mixed=True
    )
    assert found == wanted
    assert options_of(target("bm1684"), None, {}).precision == "fp32"
    assert options_of(target("bm1684"), None, dict.fromkeys(Flags.__annotations__)) == Options(precision="fp32")
    both = options_of(target("easynpu"), Options(level="0", machine="large"), {"level": 1, "allow": []})
    assert both == Options(level="1", machine="large")


@pytest.mark.parametrize(("name", "flags", "error", "text"), [
    ("easynpu", {"presision": "int8"}, TypeError, "Did you mean 'precision'"),
    ("easynpu", {"calibrations": "x"}, TypeError, "compile takes no 'calibrations'"),
    ("nvdla-small", {"precision": "fp16"}, ValueError, "nvdla-small has no precision 'fp16'"),
    ("nvdla-full", {"weights": "winogard"}, ValueError, "Did you mean 'winograd'"),
    ("easynpu", {"weights": "direct"}, ValueError, "It has: none"),
    ("easynpu", {"allow": "split_average_pol"}, ValueError, "Did you mean 'split_average_pool'"),
    ("easynpu", {"level": 3}, ValueError, "no level '3'"),
    ("easynpu", {"proof": "al"}, ValueError, "Did you mean 'all'"),
    ("easynpu", {"method": "entropie"}, ValueError, "Did you mean 'entropy'"),
    ("easynpu", {"mixed": "automatic"}, ValueError, "mixed is 'automatic'"),
    ("easynpu", {"deny": ["Conv"], "strict": True}, ValueError, "exclude each other"),
    ("easynpu", {"fallback": "refuse"}, ValueError, "fallback was removed; --strict"),
    ("easynpu", {"max_partitions": 0}, ValueError, "max_partitions was removed; name the nodes"),
    ("easynpu", {"objective": "cycles"}, ValueError, "objective cycles was removed; the default, time"),
    ("easynpu", {"precision": "mixed", "strict": True}, ValueError, "strict and precision mixed exclude"),
    ("bm1684", {"precision": "mixed"}, ValueError, "takes no layers over"),
    ("bm1684", {"scales": "free"}, ValueError, "has no scales in fp32"),
    ("nvdla-full", {"precision": 16}, ValueError, "nvdla-full has no precision '16'"),
    ("easynpu", {"proof": True}, ValueError, "no proof 'True'"),
    ("easynpu", {"strict": "no"}, ValueError, "strict is 'no'"),
])  # fmt: skip
def test_a_flag_that_the_target_does_not_have_is_corrected(
    name: str, flags: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as raised:
        npuc.compile(MODEL, target=name, calibration="synthetic", **flags)
    assert text in str(raised.value)


def test_check_takes_the_same_keywords() -> None:
    assert npuc.check(MODEL, target="nvdla-full", precision="fp16") == []
    with pytest.raises(ValueError, match="no precision"):
        npuc.check(MODEL, target="easynpu", precision="fp16")


def test_fields_of_earlier_versions_are_flags() -> None:
    found = Options(isa="documented", objective="traffic", weights="direct")
    assert found == Options(flags={"isa": "documented", "objective": "traffic", "weights": "direct"})
    assert replace(found, level="0").flags == found.flags


@pytest.mark.parametrize(
    ("name", "flag"), [("bm1684", ("isa", "documented")), ("nvdla-small", ("objective", "traffic"))]
)
def test_a_flag_of_another_target_is_refused(name: str, flag: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=f"{name} has no {flag[0]} '{flag[1]}'. It has: none"):
        options_of(target(name), None, dict([flag]))
