"""The console script, and python -m npuc."""

import sys

from npuc import interrupts


def main() -> None:
    """Runs a command; signals are handled from here on."""
    sys.exit(interrupts.guarded(_command))


def _command() -> int:
    from npuc.cli import outcome

    return outcome()


if __name__ == "__main__":
    main()
