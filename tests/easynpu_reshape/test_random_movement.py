"""Random networks with data movement and batch normalisation between layers, on machines of all sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from npuc import program, running
from npuc.errors import NpucError
from npuc.onnx_files.export import to_onnx
from npuc.samples.loading import synthetic
from npuc.target import Options, Request, target
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance
from tests.compiled import compilation
from tests.easynpu.networks import Network, random_machine

REFUSALS = ("E202", "E205", "E302", "E303")


class MovingNetwork(Network):
    """A network in which every other layer is followed by a movement or a normalisation."""

    def grow(self) -> None:
        super().grow()
        x = self.maps[-1]
        y = self.moved(x) if self.number(0, 1) else x
        if self.number(0, 3) == 0:
            channels = self.types[y].shape[1]
            scale = self.normal(channels)
            y = self.node(
                "BatchNormalization", y, scale, self.normal(channels), self.normal(channels), self.ones(channels)
            )
        if y != x:
            self.maps.append(self.conv(y) if self.number(0, 1) else y)

    def ones(self, channels: int) -> str:
        name = self.normal(channels)
        self.constants[name] = abs(self.constants[name]) + 1
        return name

    def moved(self, x: str) -> str:
        """A transposition, blocks, or a reshape of rows and columns, where the extents allow them."""
        _, channels, height, width = self.types[x].shape
        match self.number(0, 5):
            case 0:
                return self.node("Transpose", x, perm=(0, 1, 3, 2))
            case 1 if height <= 40 and width <= 40:
                return self.node(
                    "Transpose", x, perm=((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3))[self.number(0, 2)]
                )
            case 2 if height % 2 == width % 2 == 0 and channels <= 40:
                return self.node("SpaceToDepth", x, blocksize=2)
            case 3 if channels % 4 == 0 and max(height, width) <= 20:
                return self.node("DepthToSpace", x, blocksize=2, mode=("DCR", "CRD")[self.number(0, 1)])
            case 4 if height % 2 == 0 and width <= 30:
                y = self.node("Reshape", x, shape=(1, channels, height // 2, 2 * width))
                return self.node("Transpose", y, perm=(0, 1, 3, 2))
            case 5 if channels % 3 == 0 and height <= 12:
                y = self.node("Reshape", x, shape=(1, 3, channels // 3, height, width))
                y = self.node("Transpose", y, perm=(0, 1, 3, 2, 4))
                return self.node("Reshape", y, shape=(1, 3 * height, channels // 3, width))
            case _:
                return x


def outcome(folder: Path, seed: int, isa: str) -> tuple[str | None, bool, int]:
    """(code of the refusal, whether every bit agrees, reshape words)."""
    model, machine, out = folder / "model.onnx", folder / "machine.toml", folder / "out.npu"
    model.write_bytes(to_onnx(MovingNetwork(seed).graph()).SerializeToString())
    machine.write_text("".join(f"{key} = {value}\n" for key, value in random_machine(seed).items()))
    easynpu = target("easynpu")
    try:
        compiled = compilation(Request(model, easynpu, Options(machine=str(machine), flags={"isa": isa}))).program
    except NpucError as error:
        return error.problems[0].code, False, 0
    program.save(compiled, out)
    loaded = program.load(out)
    samples = synthetic(running.program_inputs(loaded), 2, seed=1)
    report = verify(model, out, loaded, easynpu, samples, Tolerance(sqnr_db=-100, cosine=-1))
    words = sum(entry["mnemonic"] == "reshape" for entry in loaded.manifest["instructions"])
    return None, report["bit_exact"] is True, words


Outcomes = Callable[[int], tuple[str | None, bool, int]]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What becomes of a network with extended words, by its seed."""

    @cache
    def found(seed: int) -> tuple[str | None, bool, int]:
        return outcome(tmp_path_factory.mktemp("network"), seed, "extended")

    return found


@pytest.mark.parametrize("seed", range(18))
def test_a_network_with_movement_is_bit_exact_or_refused(seed: int, extended: Outcomes) -> None:
    code, exact, _ = extended(seed)
    assert exact or code in REFUSALS


@pytest.mark.parametrize("seed", range(6))
def test_a_documented_network_with_movement_is_bit_exact_or_refused(seed: int, tmp_path: Path) -> None:
    code, exact, _ = outcome(tmp_path, seed, "documented")
    assert exact or code in (*REFUSALS, "E204")


def test_the_networks_have_reshape_words(extended: Outcomes) -> None:
    assert sum(extended(seed)[2] > 0 for seed in range(10)) >= 3
