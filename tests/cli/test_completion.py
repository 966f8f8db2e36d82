"""`npuc completion`: shells take the script, and it completes commands and options."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.process import Digits, npuc


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_npuc(shell: str) -> None:
    assert f"_NPUC_COMPLETE={shell}_complete" in npuc("completion", shell).done()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_reads_the_script() -> None:
    script = npuc("completion", "bash").done()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def _completed(words: str, shell: str = "bash") -> list[str]:
    """The words that may stand for the last one."""
    last = words.rpartition(" ")[2] if shell == "fish" else str(words.count(" "))
    asked = {"_NPUC_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": last}
    command = [sys.executable, "-m", "npuc"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=True)
    return [name for line in done.stdout.splitlines() if (name := line.rpartition(",")[2])]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_values(shell: str) -> None:
    found = _completed("npuc compile --target nvdla", shell)
    assert {"nvdla-small", "nvdla-full"} <= set(found) and "bm1684" not in found


def test_commands_and_options_are_completed() -> None:
    assert _completed("npuc comp") == ["compare", "compile", "completion"]
    assert _completed("npuc export --self") == ["--self-test"]


def test_machines_passes_nodes_and_layers_are_completed(digits: Digits) -> None:
    compile = f"npuc compile {digits.model} --target easynpu"
    assert _completed(f"{compile} --machine d") == ["default", "document"]
    assert "fold_constants" in _completed(f"{compile} --dump-after fold_")
    assert _completed(f"{compile} --deny n0") == ["n0_Conv"]
    assert "Conv" in _completed(f"{compile} --deny C")
    for command in ("dump", "explain"):
        layer = "--layer " if command == "dump" else ""
        assert "n0_Conv" in _completed(f"npuc {command} {digits.program} {layer}n0")
    assert _completed("npuc dump no/such/folder --layer n0") == []


def test_another_shell_is_a_usage_error() -> None:
    npuc("completion", "tcsh").usage()
