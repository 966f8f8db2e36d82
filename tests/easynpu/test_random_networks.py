"""Random networks on small machines: tiles, halo, segments and views change no bit, or the network is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from npuc.errors import NpucError
from npuc.onnx_files.export import to_onnx
from npuc.target import Options, Request, target
from npuc.verification.metrics import Tolerance
from tests.compiled import verified
from tests.easynpu.networks import Blocks, Network, Residual, random_machine


def compiled_and_verified(
    folder: Path, seed: int, kind: type[Network] = Network, **options: Any
) -> dict[str, object]:
    """The verification report of a random network on a random machine."""
    model, machine = folder / "model.onnx", folder / "machine.toml"
    model.write_bytes(to_onnx(kind(seed).graph()).SerializeToString())
    machine.write_text("".join(f"{key} = {value}\n" for key, value in random_machine(seed).items()))
    request = Request(model, target("easynpu"), Options(machine=str(machine), **options))
    return verified(request, folder, (2, 1), Tolerance(sqnr_db=-100, cosine=-1))[1]


REFUSALS = ("E202", "E205", "E302", "E303")
Outcomes = Callable[[int], tuple[str | None, bool]]


@pytest.fixture(scope="module")
def on_small_machines(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What becomes of a random network on a small machine, by its seed."""

    @cache
    def found(seed: int) -> tuple[str | None, bool]:
        return outcome(tmp_path_factory.mktemp("network"), seed)

    return found


@pytest.mark.parametrize("seed", range(24))
def test_a_random_network_on_a_small_machine_is_bit_exact_or_refused(
    seed: int, on_small_machines: Outcomes
) -> None:
    code, exact = on_small_machines(seed)
    assert exact or code in REFUSALS


def test_most_random_networks_are_compiled(on_small_machines: Outcomes) -> None:
    assert sum(on_small_machines(seed)[1] for seed in range(20)) >= 15


@pytest.mark.parametrize("seed", [*range(7), *range(8, 12)])  # number 7 takes as long as all others
def test_random_blocks_on_a_small_machine_are_bit_exact_or_refused(seed: int, tmp_path: Path) -> None:
    code, exact = outcome(tmp_path, seed, Blocks, level=str(seed % 2))
    assert exact or code in REFUSALS


@pytest.mark.parametrize("seed", [85, 89, 92, 97, 102, 106])
def test_a_random_residual_network_of_documented_words_is_bit_exact_or_refused(seed: int, tmp_path: Path) -> None:
    code, exact = outcome(tmp_path, seed, Residual, level="0", flags={"isa": "documented"})
    assert exact or code in (*REFUSALS, "E204")


def outcome(folder: Path, seed: int, kind: type[Network] = Network, **options: Any) -> tuple[str | None, bool]:
    """(code of the refusal, whether every bit agrees)."""
    try:
        return None, compiled_and_verified(folder, seed, kind, **options)["bit_exact"] is True
    except NpucError as error:
        return error.problems[0].code, False
