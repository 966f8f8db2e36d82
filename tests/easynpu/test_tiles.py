"""Segments side by side compute what they compute one after the other, whatever one leaves to the next."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc import running
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.models import MODELS
from npuc.program import Program, as_loaded
from npuc.samples.loading import varied_samples
from npuc.target import Options, Request, target
from npuc.targets.easynpu.machine.isa import words_to_bytes
from npuc.targets.easynpu.machine.listing import assemble
from npuc.targets.easynpu.machine.memory import MapPlace
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import Contents, ImageLoad, Segment, Step, TensorMove
from npuc.targets.easynpu.simulate import running as runners
from npuc.targets.easynpu.simulate.running import Runner, plan_steps
from npuc.targets.easynpu.simulate.simulator import Simulator
from tests.compiled import compilation

WORDS, BLOCK, SAMPLES = 28, 21, 2
MACHINE = Machine(fmap_words=WORDS, skip_words=WORDS, weight_words=2 * BLOCK)
TENSORS = ("a", "b", "c")
LOW = range(0, WORDS - 3, 2)


class Drawn:
    """A random program: few words and tensors, so that segments often share and overwrite each other's maps."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.blocks: list[Array] = []
        self.steps: list[Step] = []
        self.kept = False
        for _ in range(self.random.integers(4, 12)):
            self.steps.append(self.segment() if self.random.random() < 0.9 or self.kept else self.host())
        words = [each for line in self.lines if (each := assemble(line)) is not None]
        self.files = {"itcm.bin": words_to_bytes(words), "weight.bin": np.concatenate(self.blocks).tobytes()}

    def move(self, base: int, tensor: str | None = None) -> TensorMove:
        """A window of a tensor (1, 32, 2, 4) at an address."""
        at = tuple(int(self.random.choice(each)) for each in ((0, 16), (0,), (0, 1, 2)))
        tensor = tensor or str(self.random.choice(TENSORS))
        return TensorMove(tensor, (1, 32, 2, 4), MapPlace("fmap", base, 2, 1, 1), 16, 2, 2, (at[0], at[1], at[2]))

    def segment(self) -> Segment:
        first, count = len(self.lines), 0
        block = np.random.default_rng(self.random.integers(3)).integers(-128, 128, (BLOCK, 16)).astype(np.int8)
        block[:4], block[4] = 0, -9
        self.blocks.append(block)
        tile = self.random.random() < 0.5  # a window of one tensor becomes a window of another
        src = start = last = int(self.random.choice(LOW))
        for _ in range(1 if tile else self.random.integers(1, 3)):
            last = dst = int(self.random.choice([each for each in LOW if abs(each - src) >= 4]))
            keeps = self.random.random() < (0 if tile else 0.15)
            control = f"ctl keep_psum={int(keeps)} take_psum={int(self.kept)} set_weights=1 weights=0"
            lines = [f"src base={src} row=2 pixel=1 group=1", control]
            lines += [] if keeps else [f"dst base={dst} row=2 pixel=1 group=1"]
            lines.append("conv Ho=2 Wo=2 Co=16 Ci=16 Hi=2 Wi=2 y=2 x=2 yi=2 xi=2")
            self.lines += lines
            count += len(lines)
            self.kept, src = keeps, src if keeps or self.random.random() < 0.5 else dst
        images = (
            ImageLoad("itcm", 0, "itcm.bin", first, count),
            ImageLoad("weight", 0, "weight.bin", BLOCK * (len(self.blocks) - 1), BLOCK),
        )
        if tile:
            return Segment(images, (self.move(start, "a"),), count, (self.move(last, "b"),))
        loads = tuple(self.move(int(self.random.choice(LOW))) for _ in range(self.random.integers(0, 3)))
        stores = tuple(self.move(int(self.random.choice(LOW))) for _ in range(self.random.integers(0, 3)))
        return Segment(images, loads, count, stores)

    def host(self) -> HostStep:
        name, other = self.random.choice(TENSORS, 2)
        attrs = {"shape": [1, 32, 2, 4]}
        return HostStep("h", "Reshape", (str(name),), (str(other),), attrs, conversion=False, reason="")


def _run(
    drawn: Drawn, feeds: dict[str, Array], *, tiles: bool
) -> tuple[dict[str, Array], list[tuple[int, bytes]]]:
    """The tensors after the steps, and what was observed."""
    tensors, seen = {name: each.copy() for name, each in feeds.items()}, list[tuple[int, bytes]]()

    def observe(number: int, values: Array) -> None:
        seen.append((number, values.tobytes()))

    simulator = Simulator(MACHINE, drawn.files)
    runner = Runner.__new__(Runner)
    runner.simulator = simulator
    state = simulator.state(SAMPLES)
    for step in plan_steps(drawn.steps, simulator) if tiles else drawn.steps:
        if isinstance(step, HostStep):
            step.run(tensors)
            tensors |= {name: tensors[name].copy() for name in step.outputs}
        elif isinstance(step, Segment):
            simulator.run(step, state, tensors, observe)
        else:
            runner.run_wave(step, state, tensors, observe)
    return tensors, seen


def test_random_segments_give_the_same_tensors_side_by_side_as_in_turn() -> None:
    sizes, repeated, shared = Counter[int](), 0, 0
    for seed in range(120):
        drawn = Drawn(seed)
        feeds = {
            name: np.random.default_rng(seed).integers(-128, 128, (SAMPLES, 1, 32, 2, 4)).astype(np.int8)
            for name in TENSORS
        }
        wanted, shown = _run(drawn, feeds, tiles=False)
        found, seen = _run(drawn, feeds, tiles=True)
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values, err_msg=str(seed))
        assert seen == shown, seed
        for wave in plan_steps(drawn.steps, Simulator(MACHINE, drawn.files)):
            for each in () if isinstance(wave, HostStep) else wave:
                sizes[len(each.parts)] += 1
                shared += len(each.parts[0]) > 1
                repeated += each.resumes
    assert sizes[2] > 25 and sizes[3] > 1 and shared > 50 and repeated > 10


def _compiled(name: str, machine: str, folder: Path) -> Program:
    path, limits = folder / f"{name}.onnx", folder / "m.toml"
    onnx.save(MODELS[name](), path)
    limits.write_text(machine, encoding="utf-8")
    options = Options(machine=str(limits), level="0")
    return as_loaded(compilation(Request(path, target("easynpu"), options)).program)


@pytest.mark.parametrize(("name", "machine"), [
    ("lenet", "weight_words = 900\n"), ("resnet8", "fmap_words = 400\nskip_words = 400\n"),
    ("unet_small", "fmap_words = 600\nskip_words = 600\nweight_words = 500\n"),
    ("residual_awkward", "fmap_words = 300\nskip_words = 300\n"), ("mobilenet_v1_025", "weight_words = 700\n"),
])  # fmt: skip
def test_a_program_of_many_tiles_gives_the_same_bits_and_layers_as_in_turn(
    name: str, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a sample alone before the others, and in pieces of few machines."""
    program = _compiled(name, machine, tmp_path)
    contents = Contents.of(program.manifest)
    feeds = varied_samples(running.program_inputs(program)).inputs
    seen: tuple[dict[str, Array], dict[str, Array]] = {}, {}
    wanted = Runner(program, Simulator(contents.machine, program.files))(feeds, seen[0].__setitem__)
    run = Runner(program)
    alone = run({name: values[:1] for name, values in feeds.items()})
    found = run(feeds, seen[1].__setitem__)
    monkeypatch.setattr(runners, "MOST_BYTES", 1)
    pieces = run(feeds)
    for output, values in wanted.items():
        np.testing.assert_array_equal(alone[output], values[:1])
        np.testing.assert_array_equal(found[output], values)
        np.testing.assert_array_equal(pieces[output], values)
    assert seen[0].keys() == seen[1].keys() and seen[0]
    for tensor, values in seen[0].items():
        np.testing.assert_array_equal(seen[1][tensor], values)
