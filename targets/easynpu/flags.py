"""The options of a compilation that only EasyNPU has."""

from npuc.flag import Flag

EXTENDED, DOCUMENTED = "extended", "documented"
ISA = Flag(
    "isa",
    (EXTENDED, DOCUMENTED),
    "extended: may use extension words; documented: the document's words only (EasyNPU).",
)
OBJECTIVE = Flag(
    "objective",
    ("time", "traffic"),
    "What tiled plans minimise; time: computation and transfers together (EasyNPU).",
)
FLAGS = (ISA, OBJECTIVE)
