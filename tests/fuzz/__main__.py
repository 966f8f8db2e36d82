"""python -m tests.fuzz KIND COUNT [SEED]: a long run; prints every case that breaks a promise of SECURITY.md.

Cases run in processes with limits on memory and time, which are replaced when one dies. Time is the processor's,
in confined processes too; a case that waits ends as well, later.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from tests.fuzz.cases import KINDS, outcome

MEMORY, SECONDS, WAIT = 2 << 30, 60, 600
WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def processor_time() -> float:
    """Seconds that this process and those that it has ended took of the processor."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, WHO))


def worker(kind: str, first: int, end: int, folder: Path, pipe: int) -> None:
    """Runs cases and writes a line after each; a case that breaks a promise gets its traceback."""
    longest = 0.0
    with os.fdopen(pipe, "w") as out:
        for seed in range(first, end):
            signal.alarm(WAIT)
            print(f"begin {seed}", file=out, flush=True)
            started = processor_time()
            try:
                found = outcome(kind, seed, folder / str(seed))
            except BaseException as error:
                places = traceback.extract_tb(error.__traceback__)[-4:]
                where = " < ".join(
                    f"{'/'.join(Path(each.filename).parts[-2:])}:{each.lineno}" for each in places[::-1]
                )
                found = f"{type(error).__name__} at {where} {str(error)[:80]!r}"
            print(f"end {found}", file=out, flush=True)
            if processor_time() - started > SECONDS:
                print(f"slow {processor_time() - started:.0f}", file=out, flush=True)
            used = max(resource.getrusage(who).ru_maxrss << 10 for who in WHO)
            print(f"peak {max(longest, processor_time() - started):.1f} {used >> 20}", file=out, flush=True)
            longest = max(longest, processor_time() - started)
            if used > MEMORY:
                print("end memory", file=out, flush=True)
                os._exit(0)
    os._exit(0)


def main(kind: str, count: str, start: str = "0") -> int:
    counts, broken, peaks = Counter[str](), 0, [0.0, 0.0]
    seed, end = int(start), int(start) + int(count)
    outcome(kind, seed, Path(tempfile.mkdtemp()) / "warm")
    with tempfile.TemporaryDirectory() as folder:
        while seed < end:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY, 4 * MEMORY))
                worker(kind, seed, end, Path(folder), writing)
            os.close(writing)
            last = ""
            with os.fdopen(reading) as lines:
                for line in lines:
                    word, _, rest = line.rstrip("\n").partition(" ")
                    if word == "begin":
                        seed = int(rest)
                    elif word == "peak":
                        peaks = [max(each, float(new)) for each, new in zip(peaks, rest.split(), strict=True)]
                    elif word == "slow" or not (rest == "done" or (len(rest) == 4 and rest[0] == "E")):
                        broken += 1
                        print(f"{kind} {seed}: {word} {rest}", flush=True)
                    else:
                        counts[rest] += 1
                    last = word
            status = os.waitpid(child, 0)[1]
            if last == "begin":
                broken += 1
                print(f"{kind} {seed}: the process ended with status {status}", flush=True)
            seed += 1
    print(f"{kind}: {count} cases from {start}, {broken} broken promises, {dict(counts.most_common())}")
    print(f"at most {peaks[0]:g} s of processor time and {peaks[1]:g} MiB in a process")
    return 1 if broken else 0


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in KINDS:
        sys.exit(f"{__doc__}\nKINDs: {', '.join(KINDS)}")
    sys.exit(main(*sys.argv[1:]))
