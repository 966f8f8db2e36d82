"""The console script, and python -m npuc."""

import gc
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until npuc handles it: Python would print a traceback

from npuc.system import interrupts

OBJECTS = 50_000
"""New objects after which Python looks for cycles among them, in place of 700: npuc's data have hardly any."""


def main() -> None:
    """Runs a command; signals are handled from here on."""
    gc.set_threshold(OBJECTS)
    code = interrupts.guarded(_command)
    gc.freeze()  # the process ends: no search for cycles among all objects, which takes a tenth of a short command
    sys.exit(code)


def _command() -> int:
    from npuc.cli import outcome

    return outcome()


if __name__ == "__main__":
    main()
