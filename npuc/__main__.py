"""The console script, and python -m npuc."""

import _signal  # pyright: ignore  # what `signal` wraps: takes no time to import

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until npuc handles it: Python would print a traceback

import gc
import sys

from npuc.system import interrupts

OBJECTS = 50_000
"""New objects after which Python looks for cycles among them, in place of 700: npuc's data have hardly any."""


def main() -> None:
    """Runs a command; signals are handled from here on."""
    gc.set_threshold(OBJECTS)
    code = interrupts.guard(_command)
    gc.freeze()  # the process ends: no search for cycles among all objects, which takes a tenth of a short command
    sys.exit(code)


def _command() -> int:
    from npuc.cli import outcome

    return outcome()


if __name__ == "__main__":
    main()
