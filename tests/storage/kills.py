"""kills.py FOLDER COUNT [--without-exchange]: kills at random moments what replaces an artefact.

After every kill the artefact must be one of the two that the process writes in turn, whole, and the next save must
leave nothing else in the folder. Prints how many kills found which.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from npuc.program import Program, load, save
from npuc.storage import files

SPAN, LONGEST = 0.008, 1.0
"""Seconds until a kill, at most; more where the machine is too busy for the writer to get on in that time."""
CONTENTS = {
    name: Program({"target": "easynpu", "which": name}, {f"{at}.bin": name.encode() * 4000 for at in range(4)})
    for name in ("old", "new")
}


def writing(path: Path) -> None:
    """Saves one after the other, first the one that does not stand there, until it is killed."""
    while True:
        for each in ("new", "old"):
            save(CONTENTS[each], path)


def killed(path: Path, seconds: float) -> None:
    child = os.fork()
    if child == 0:
        try:
            writing(path)
        finally:
            os._exit(3)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the writer ended by itself"


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def main(folder: str, count: str, *options: str) -> None:
    if options:
        files._exchange = lambda *_: False
    path, found = Path(folder) / "net.npu", Counter[str]()
    save(CONTENTS["old"], path)
    chance, span = random.Random(16), SPAN
    for number in range(int(count)):
        if number % 25 == 24 and min(found["old"], found["new"]) == 0:
            span = min(span * (2 if found["old"] else 0.5), LONGEST)
        killed(path, chance.uniform(0, span))
        loaded = load(path)
        assert loaded.files == CONTENTS[loaded.manifest["which"]].files
        found[loaded.manifest["which"]] += 1
        found["with leftovers"] += len(names(path.parent)) > 1
        save(CONTENTS["old"], path)
        assert names(path.parent) == ["net.npu"]
    print(dict(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
