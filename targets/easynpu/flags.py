"""The options of a compilation that only EasyNPU has."""

from npuc.flag import Flag

EXTENDED, DOCUMENTED = "extended", "documented"
ISA = Flag("isa", (EXTENDED, DOCUMENTED), "Allow extension words or not (EasyNPU).")
OBJECTIVE = Flag(
    "objective",
    ("time", "traffic", "cycles"),
    "What tiled plans minimise (EasyNPU): computation and transfer, or one of them.",
)
FLAGS = (ISA, OBJECTIVE)
