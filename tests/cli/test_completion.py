"""`npuc completion`: shells take the script, and it completes commands and options."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.process import npuc


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_npuc(shell: str) -> None:
    assert f"_NPUC_COMPLETE={shell}_complete" in npuc("completion", shell).done()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_reads_the_script() -> None:
    script = npuc("completion", "bash").done()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_commands_and_options_are_completed() -> None:
    def completed(words: str, number: int) -> list[str]:
        asked = {"_NPUC_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        command = [sys.executable, "-m", "npuc"]
        done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("npuc comp", 1) == ["compare", "compile", "completion"]
    assert completed("npuc export --self", 2) == ["--self-test"]


def test_another_shell_is_a_usage_error() -> None:
    npuc("completion", "tcsh").usage()
