"""The float passes of BM1684."""

from npuc.pipeline import Pass

PASSES: tuple[Pass, ...] = ()
