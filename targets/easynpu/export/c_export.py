"""A program's words and images in other forms: files for hardware, or C with a driver and a self-test.

A $readmemh file has one 128-bit word per line, most significant digit first: lane 15 ... lane 0.

The C is npuc_program.h and .c from the program's plan, with the driver and the machine model from c/.

The text does not depend on when or where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from npuc.errors import UnsupportedOperator
from npuc.host import c_text
from npuc.host.c_code import MOST_RANK, RULES, CallWriter, parameters
from npuc.host.c_code import SOURCES as OPERATORS
from npuc.host.c_text import array, floating, initialiser, struct_initialiser, vectors
from npuc.ir import Array, Graph, Node, type_of
from npuc.ops import OPS
from npuc.program import Port, Program, canonical_json, count_of
from npuc.storage import readmemh
from npuc.targets.easynpu.export.c_plan import FRAME, DriverPlan, plan
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import WORD_BYTES
from npuc.targets.easynpu.machine.parameters import ALL_BITS, AT_LEAST, EQUAL, REGISTERS, SIZES, requirements
from npuc.targets.easynpu.program.artefact import Contents, ImageLoad, Segment, TensorMove
from npuc.targets.easynpu.simulate.running import Runner
from npuc.targets.easynpu.simulate.walk import segments_of
from npuc.text.escaping import c_comment, c_string, markdown_code

SOURCES = Path(__file__).parent / "c"
INCLUDES = '#include "npuc_program.h"\n\n#include <math.h>\n\n#include "npuc_operators.h"\n\n'
FAILED = ("if (failed)", "    return failed;")
IMAGES = {"itcm.bin": "npuc_itcm", "weight.bin": "npuc_weight"}
"""Image files and the arrays of their words."""
C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "int64": "int64_t", "float32": "float"}
DEMANDS = {demand: f"NPUC_{demand.upper()}" for demand in (EQUAL, AT_LEAST, ALL_BITS)}


def export_files(program: Program, form: str) -> dict[str, bytes]:
    """itcm and weight images as raw binary (bin), text (readmemh) or C with a driver (c), and map.json."""
    if form == "c":
        return {**_c_files(program), "map.json": _map(program, dict.fromkeys(program.files, "npuc_program.c"))}
    suffix = {"bin": "bin", "readmemh": "hex"}[form]
    names = {name: f"{Path(name).stem}.{suffix}" for name in program.files}
    texts = {name: readmemh.image_text(data, WORD_BYTES) for name, data in program.files.items() if form != "bin"}
    images = {file: texts.get(name, program.files[name]) for name, file in names.items()}
    return {**images, "map.json": _map(program, names)}


def _map(program: Program, files: Mapping[str, str]) -> bytes:
    """map.json: steps, placements, and the file of every image."""
    keys = ("target", "machine", "isa", "init", "steps", "placements")
    described: dict[str, Any] = {key: program.manifest.get(key) for key in keys}
    described |= {"word_bytes": WORD_BYTES, "files": {Path(name).stem: file for name, file in files.items()}}
    return canonical_json(described)


def _c_files(program: Program) -> dict[str, bytes]:
    """The program's sources, the driver, and a test that runs both on a machine model, by path.

    Raises UnsupportedOperator (E202) for a host step that the library does not compute.
    """
    found = plan(program)
    files = c_text.sources(OPERATORS) | c_text.sources(SOURCES)
    readme = Template(files["README.md"].decode()).substitute(_figures(program, found))
    return {
        **files,
        "README.md": readme.encode(),
        "npuc_program.h": header(program, found).encode(),
        "npuc_program.c": source(program, found).encode(),
    }


def header(program: Program, found: DriverPlan) -> str:
    """npuc_program.h: the sizes of the buffers, the machine, the program."""
    machine = Contents.of(program.manifest).machine
    images = {
        IMAGES[name]: len(data) // WORD_BYTES
        for name, data in sorted(program.files.items())
        if name in IMAGES and data
    }
    definitions = [
        "/* What an inference needs; input and output bytes are those of all inputs and of all outputs. */",
        *(f"#define NPUC_{name} {value}" for name, value in _sizes(program, found).items()),
        "",
        "/* The machine that the program is for. */",
        *(f"#define NPUC_{name.upper()} {getattr(machine, name)}" for name in SIZES),
    ]
    declarations = [
        "/* Instruction words and weight streams of all segments. */",
        *(f"extern const struct npuc_word {name}[{words}];" for name, words in images.items()),
        "",
        "extern const struct npuc_program npuc_program;",
        "",
        "/* npuc_infer with this program: a frame as the camera gives it; the others as the tables below say. */",
        f"{_run(program)};",
    ]
    return c_text.header(_title(program), "NPUC_PROGRAM_H", "npuc_driver.h", definitions, declarations)


def source(program: Program, found: DriverPlan) -> str:
    """npuc_program.c: words, tensors, segments and host steps."""
    tensors = {name: number for number, name in enumerate(found.types)}
    images = [
        array("struct npuc_word", IMAGES[name], _words(data), public=True)
        for name, data in sorted(program.files.items())
        if name in IMAGES
    ]
    segments = [each for each in found.actions if isinstance(each, Segment)]
    tables, rows = list[str](), list[str]()
    for number, each in enumerate(segments):
        row, own = _segment(number, each, tensors)
        rows.append(row)
        tables += own
    members: dict[str, Any] = {"inputs": "inputs", "input_count": len(program.inputs)}
    members |= {"outputs": "outputs", "output_count": len(program.outputs)}
    init = [_image(each) for each in Contents.of(program.manifest).init.images]
    members |= {"buffers": "buffers", "init": "init" if init else "0", "init_count": len(init), "steps": "steps"}
    demands = _requirements(program)
    members |= {"requirements": "requirements", "requirement_count": len(demands)}
    return "".join(
        [
            f"{_title(program)}\n{INCLUDES}",
            *images,
            _border("input", program.inputs, found),
            _border("output", program.outputs, found),
            *(_constant(tensors[name], value) for name, value in found.constants.items()),
            array("struct npuc_buffer", "buffers", _buffers(program, found)),
            array("struct npuc_image", "init", init),
            *tables,
            array("struct npuc_segment", "segments", rows),
            _steps(found, tensors),
            array("struct npuc_requirement", "requirements", demands),
            f"const struct npuc_program npuc_program = {struct_initialiser(**members)};\n\n",
            _run_body(program),
        ]
    )


def _run(program: Program) -> str:
    """The head of the whole inference."""
    return f"int npuc_run({', '.join([*parameters(program)[1], 'void *arena'])})"


def _run_body(program: Program) -> str:
    names, count = parameters(program)[0], len(program.inputs)
    given, wanted = (", ".join(each) or "0" for each in (names[:count], names[count:]))
    return (
        f"{_run(program)}\n{{\n"
        f"    const void *const inputs[] = {{{given}}};\n    void *const outputs[] = {{{wanted}}};\n\n"
        "    return npuc_infer(&npuc_program, inputs, outputs, arena);\n}\n"
    )


def _steps(found: DriverPlan, tensors: Mapping[str, int]) -> str:
    """The function that runs all steps: calls of the library, and runs of consecutive segments."""
    nodes = tuple(each for each in found.actions if isinstance(each, Node))
    written = {name for each in nodes for name in each.outputs}
    places = {
        name: f"npuc_{'to' if name in written else 'from'}(all, {number})" for name, number in tensors.items()
    }
    types = {**found.types, **{name: type_of(value) for name, value in found.numbers.items()}}
    to = CallWriter(Graph("host", nodes, (), (), found.numbers, types, OPS), "host", places)
    first = 0
    for is_segment, group in groupby(found.actions, key=lambda each: isinstance(each, Segment)):
        actions = list(group)
        if is_segment:
            to.statements += [f"failed = npuc_play(segments + {first}, {len(actions)}, all);", *FAILED]
            first += len(actions)
            continue
        for each in actions:
            assert isinstance(each, Node)
            to.statements.append(c_comment(f"{each.op} {each.source}"))
            if each.op == FRAME:
                to.call("frame", places[each.output], places[each.inputs[0]], types[each.output].size)
            elif not to.emit(each):
                raise _refusal(each)
    body = [*(["int failed;", ""] if first else []), *([] if found.actions else ["(void)all;"]), *to.statements]
    lines = "".join(f"    {line}\n" if line else "\n" for line in body)
    head = "static int steps(const struct npuc_inference *all)"
    return "".join([*to.tables, f"{head}\n{{\n{lines}    return 0;\n}}\n\n"])


def _refusal(node: Node) -> UnsupportedOperator:
    return UnsupportedOperator(
        "E202",
        "the C library has no such host operator, or not for these types and extents",
        node=node.source,
        op=node.op,
        tensor=node.output,
        limit=f"{', '.join(RULES)}; at most {MOST_RANK} axes",
        remedy="end the network before it and compute it in the application",
    )


def _title(program: Program) -> str:
    machine = Contents.of(program.manifest).machine
    return c_comment(f"{program.model.name} for the EasyNPU machine '{machine.name}'. Written by npuc.")


def _sizes(program: Program, found: DriverPlan) -> dict[str, int]:
    """The buffers of an inference: number and bytes."""
    inputs, outputs = (
        sum(found.types[port.name].bytes for port in ports) for ports in (program.inputs, program.outputs)
    )
    return {
        "ARENA_BYTES": max(found.arena_bytes, 1),
        "INPUTS": len(program.inputs),
        "OUTPUTS": len(program.outputs),
        "INPUT_BYTES": inputs,
        "OUTPUT_BYTES": outputs,
    }


def _requirements(program: Program) -> list[str]:
    """The program's requirements on the machine's. Raises ArtefactError (E502) for forbidden loads."""
    contents = Contents.of(program.manifest)
    words = isa.bytes_to_words(program.files.get("itcm.bin", b""))
    overlaps = any(each.words_ahead for each in contents.segments)
    if overlaps:
        list(segments_of(program))  # refuses loads that meet what a run uses
    found = requirements(contents.machine, words, overlaps=overlaps)
    rows = (initialiser([each.register, DEMANDS[each.demand], each.value]) for each in found)
    return [f"{row} {c_comment(REGISTERS[each.register])}" for row, each in zip(rows, found, strict=True)]


def _words(data: bytes) -> list[str]:
    """Initialisers of the 16-byte words of an image."""
    pieces = (data[at : at + WORD_BYTES] for at in range(0, len(data), WORD_BYTES))
    return [initialiser([initialiser(f"0x{byte:02x}" for byte in piece)]) for piece in pieces]


def _border(role: str, ports: Sequence[Port], found: DriverPlan) -> str:
    """The table of inputs or outputs, preceded by their shapes."""
    shapes = [
        array("uint32_t", f"{role}_shape_{number}", [", ".join(map(str, port.shape))])
        for number, port in enumerate(ports)
        if port.shape
    ]
    rows = [
        struct_initialiser(
            name=c_string(port.name),
            type=f"NPUC_{port.dtype.upper()}",
            rank=len(port.shape),
            shape=f"{role}_shape_{number}" if port.shape else 0,
            bytes=found.types[port.name].bytes,
            scale=floating(found.scales.get(port.name, (0, 0))[0]),
            zero=floating(found.scales.get(port.name, (0, 0))[1]),
        )
        for number, port in enumerate(ports)
    ]
    return "".join(shapes) + array("struct npuc_tensor", f"{role}s", rows)


def _constant(number: int, value: Array) -> str:
    """The elements of a constant tensor, several per line."""
    return array(C_TYPES[str(value.dtype)], f"constant_{number}", c_text.elements(value))


def _buffers(program: Program, found: DriverPlan) -> list[str]:
    """The place of every tensor, by its number."""
    places = {name: ("NPUC_ARENA", address, 0) for name, address in found.addresses.items()}
    for where, ports in (("NPUC_INPUT", program.inputs), ("NPUC_OUTPUT", program.outputs)):
        places |= {port.name: (where, number, 0) for number, port in enumerate(ports)}
    numbers = {name: number for number, name in enumerate(found.types)}
    rows = {name: initialiser(place) for name, place in places.items()}
    rows |= {name: initialiser(["NPUC_CONSTANT", 0, f"constant_{numbers[name]}"]) for name in found.constants}
    return [f"{rows[found.storage[name]]} {c_comment(name)}" for name in found.types]


def _segment(number: int, segment: Segment, tensors: Mapping[str, int]) -> tuple[str, list[str]]:
    """The initialiser of a segment, and its tables."""
    tables = {
        "image": ("struct npuc_image", [_image(each) for each in segment.images]),
        "load": ("struct npuc_move", [_move(each, tensors) for each in segment.loads]),
        "store": ("struct npuc_move", [_move(each, tensors) for each in segment.stores]),
        "ahead_image": ("struct npuc_image", [_image(each) for each in segment.images_ahead]),
        "ahead_load": ("struct npuc_move", [_move(each, tensors) for each in segment.loads_ahead]),
    }
    members: dict[str, Any] = {"instructions": segment.count}
    for name, (_, rows) in tables.items():
        if rows:
            members |= {f"{name}s": f"segment_{number}_{name}s", f"{name}_count": len(rows)}
    own = [array(kind, f"segment_{number}_{name}s", rows) for name, (kind, rows) in tables.items()]
    return struct_initialiser(**members), own


def _image(load: ImageLoad) -> str:
    return initialiser(
        [f"NPUC_{load.memory.upper()}", load.address, f"{IMAGES[load.file]} + {load.start}", load.words]
    )


def _move(move: TensorMove, tensors: Mapping[str, int]) -> str:
    place = move.place
    return struct_initialiser(
        tensor=tensors[move.tensor],
        place=initialiser([f"NPUC_{place.memory.upper()}", place.base, place.row, place.pixel, place.group]),
        whole=initialiser(move.map_shape),
        start=initialiser(move.start),
        size=initialiser([move.channels, move.height, move.width]),
    )


def _figures(program: Program, found: DriverPlan) -> dict[str, str]:
    """The figures of this program for README.md."""
    segments = sum(isinstance(each, Segment) for each in found.actions)
    return {
        "model": markdown_code(program.model.name),
        "machine": markdown_code(Contents.of(program.manifest).machine.name),
        "segments": str(segments),
        "host_steps": str(len(found.actions) - segments),
        "image_bytes": f"{sum(len(data) for data in program.files.values()):,}",
        "arena_bytes": f"{found.arena_bytes:,}",
        "names": ", ".join(parameters(program)[0]),
        "inputs": _rows(program.inputs, found),
        "outputs": _rows(program.outputs, found),
    }


def _rows(ports: Sequence[Port], found: DriverPlan) -> str:
    """The rows of a table of tensors."""
    rows: list[str] = []
    for number, port in enumerate(ports):
        size, scale = found.types[port.name].bytes, found.scales.get(port.name, ("-", 0))[0]
        rows.append(
            f"| {number} | {markdown_code(port.name)} | {port.dtype} | {list(port.shape)} | {size} | {scale} |"
        )
    return "\n".join(rows)


SELF_TEST = Path(__file__).parent / "c_self_test"
MAKE = """
# Stored samples, compared with what npuc simulated: make check
CHECKED = $(filter-out test/main.c,$(SOURCES)) npuc_self_test.c npuc_vectors.c test/self_test.c

npuc_check: $(CHECKED) $(HEADERS) npuc_self_test.h
\t$(CC) $(CFLAGS) -I. -o $@ $(CHECKED) -lm

check: npuc_check
\t./npuc_check

.PHONY: check
"""


def self_test(program: Program, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """npuc_vectors.c with stored samples, the comparison, its main on the machine model, and `make check`.

    inputs: (samples, *shape) by name. The expected outputs come from the chip model, which reads only the
    artefact.
    """
    given = {port.name: inputs[port.name].astype(port.dtype, copy=False) for port in program.inputs}
    outputs = Runner(program)(given)
    count = count_of(given) if given else 1
    pairs = [
        (
            [given[port.name][sample] for port in program.inputs],
            [outputs[port.name][sample].astype(port.dtype, copy=False) for port in program.outputs],
        )
        for sample in range(count)
    ]
    return {
        **c_text.sources(SELF_TEST),
        "npuc_vectors.c": vectors(program.model.name, pairs, ("npuc_vector_count", count)),
        "Makefile": (SOURCES / "Makefile").read_bytes() + MAKE.encode(),
    }
