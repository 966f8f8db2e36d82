"""Text of models and artefacts in every language that npuc writes; and that no writer forgets to escape it."""

from __future__ import annotations

import ast
import csv
import html.parser
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from npuc.errors import ModelError
from npuc.text import escaping
from npuc.text.terminal import csv_table, table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
EVIL = (
    'a*/b', "??/", "\\\n", "a\\", '"', "'", "\n", "\r\n", "\x1b[2J", "\x07", "\x00", "\x7f", "\u202e", "\u200b",
    "\u2028", "</script><script>alert(1)</script>", "<!--", "]]>", "`include", "; Conv Ho=1",
    "$(touch x)", "%s%n", "=1+1", "\u3164",
)  # fmt: skip
names = st.text(min_size=1, max_size=30) | st.lists(st.sampled_from(EVIL) | st.text(max_size=4), min_size=1).map(
    lambda parts: "".join(parts) or "x"
)
patient = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # the first draw reads all of Unicode


def one_line(text: str) -> bool:
    return len((text + "x").splitlines()) == 1


@patient
@given(names)
def test_a_terminal_gets_one_line_of_characters_that_it_shows(name: str) -> None:
    found = escaping.terminal(name)
    assert found.isprintable() and one_line(found) and not escaping.INVISIBLE.search(found)
    assert escaping.terminal(found) == found


@pytest.mark.parametrize(("name", "shown"), [
    ("stem/conv1:0", "stem/conv1:0"), ("größer 卷积 😀", "größer 卷积 😀"), ("a\nb\r\t", "a\\nb\\r\\t"),
    ("\x1b[31m\x07\x9b", "\\x1b[31m\\x07\\x9b"), ("\u202eevil\u2066", "\\u202eevil\\u2066"),
    ("a\u200bb\u200d\ufeff\u00ad", "a\\u200bb\\u200d\\ufeff\\xad"), ("a\u3164\ufe0f", "a\\u3164\\ufe0f"),
    ("\udcff", "\\udcff"),
])  # fmt: skip
def test_what_nobody_would_see_is_shown_escaped(name: str, shown: str) -> None:
    assert escaping.terminal(name) == shown
    assert f"tensor '{shown}'" in str(ModelError("E104", "bad", tensor=name))
    assert table(("name",), [(name,)]).splitlines()[1] == shown


@patient
@given(names, names)
def test_a_report_for_people_has_no_line_that_is_not_ours(name: str, key: str) -> None:
    found = escaping.escape_report({"layers": [{key: (name, 1, None)}]})
    ((where, (text, *others)),) = found["layers"][0].items()
    assert one_line(where) and one_line(text) and others == [1, None]


@patient
@given(names)
def test_an_error_is_as_many_lines_as_it_has_parts(name: str) -> None:
    error = ModelError("E104", name, node=name, op=name, tensor=name, limit=name, remedy=name)
    assert [line[:8] for line in str(error).splitlines()] == ["error[E1", "  limit:", "  help: "]


@patient
@given(names)
def test_json_and_toml_read_back(name: str) -> None:
    assert json.loads(escaping.json_text([name])) == [name]
    assert json.loads(escaping.html_json(name)) == name
    assert tomllib.loads(f"{escaping.toml_key(name)} = {escaping.toml_string(name)}\n") == {name: name}


@patient
@given(st.lists(st.tuples(names, names, st.none() | st.integers()), min_size=1, max_size=4))
@example([("\r", "a\rb", None), ("\0", "", 0)])
def test_csv_reads_back(rows: list[tuple[str, str, int | None]]) -> None:
    text = csv_table(("a", "b", "c"), rows)
    found = list(csv.reader(io.StringIO(text, newline="")))
    read = [
        [a.replace("\0", "\ufffd"), b.replace("\0", "\ufffd"), "" if c is None else str(c)] for a, b, c in rows
    ]
    assert found == [["a", "b", "c"], *read]


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


@patient
@given(names)
def test_html_holds_no_element_or_attribute_of_a_name(name: str) -> None:
    page = Elements()
    page.feed(f'<b title="{escaping.html(name)}">{escaping.html(name)}</b>')
    page.close()
    assert page.found == [("b", [("title", escaping.terminal_lines(name))])]
    assert page.text == escaping.terminal_lines(name)
    script = Elements()
    script.feed(f"<script>{escaping.html_json(name)}</script><i>")
    assert [tag for tag, _ in script.found] == ["script", "i"]


def c_tokens(text: str) -> str:
    """What a C compiler makes of it: trigraphs, spliced lines, then comments (C11, 5.1.1.2)."""
    return text.replace("??/", "\\").replace("\\\n", "")


@patient
@given(names)
def test_c_comments_and_strings_end_where_we_end_them(name: str) -> None:
    comment = c_tokens(escaping.c_comment(name) + "\nint x;")
    assert comment.index("*/") == comment.index("\nint x;") - 2 and "/*" not in comment[2:]
    literal = escaping.c_string(name)
    assert c_tokens(literal) == literal and ast.literal_eval("b" + literal) == name.encode("utf-8", "replace")


@patient
@given(names)
def test_verilog_comments_end_with_the_line_and_hold_no_directive(name: str) -> None:
    comment = escaping.verilog_comment(name)
    assert one_line(comment) and comment.startswith("// ") and not set(comment) & {"`", "\\"}


@patient
@given(names)
def test_words_of_a_shell_and_of_markdown_are_one_thing_each(name: str) -> None:
    assert shlex.split(escaping.shell_word(name)) == [name]
    code = escaping.markdown_code(name)
    assert one_line(code) and code.count("`") == 2 and "|" not in code


@patient
@given(names)
def test_a_comment_of_a_listing_is_its_lines_rest(name: str) -> None:
    assert one_line(f"halt ; {escaping.listing(name)}")


# The lint: names in f-strings of modules that write text.

NAMES = frozenset(
    [
        "name",
        "node",
        "nodes",
        "tensor",
        "tensors",
        "op",
        "title",
        "label",
        "layer",
        "model",
        "machine",
        "source",
        "sources",
        "region",
        "buffer",
        "text",
        "what",
    ]
)
"""The last word of an expression that may be text of a model, an artefact or a machine file."""
ESCAPES = frozenset(name for name in vars(escaping) if not name.startswith("_"))
ERRORS = ("Error", "UnsupportedOperator", "DoesNotFit", "Mismatch", "Problem", "bad_machine", "unsupported", "bad")
"""What an error says is escaped where it is printed (Problem.__str__)."""
SAID = ("reason", "remedy", "limit", "hint", "known", "said")
"""Parts of errors under construction."""
OURS = {
    "the whole line is escaped where it is put together": {("errors.py", "self.node"),
        ("errors.py", "self.tensor"), ("ir.py", "self.name"), ("ir.py", "node.op"),
        ("ir.py", "self.tensors[name]"), ("errors.py", "Path(last.tb_frame.f_code.co_filename).name")},
    "the page's templates and drawings escape what they are given (svg.py)": {("charts.py", "name"),
        ("charts.py", "each.label"), ("charts.py", "layer['name']"), ("drawing.py", "layer['name']"),
        ("drawing.py", "layer['op']"), ("drawing.py", "name"), ("drawing.py", "op"),
        ("drawing.py", "step['node']"), ("drawing.py", "why['op']"), ("page.py", "', '.join(entry['nodes'])"),
        ("page.py", "what"), ("page.py", "each.label"), ("page.py", "why['op']"), ("page.py", "report['machine']"),
        ("sweep_page.py", "name"), ("sweep_page.py", "report['model']"), ("sweep_page.py", "report['machine']"),
        ("sweep_page.py", "point['machine']")},
    "parts of a message that is escaped where it is printed": {("flags.py", "name"), ("table.py", "name"),
        ("account.py", "what"), ("records.py", "name"), ("checking.py", "model"), ("checking.py", "name"),
        ("checking.py", "each['op']"), ("compiling.py", "name"), ("compiling.py", "model"), ("program.py", "name"),
        ("terminal.py", "name[3 - width:]"), ("terminal.py", "name"), ("tables.py", "name"), ("c_code.py", "name"),
        ("c_code.py", "title"), ("terminal.py", "what"), ("tables.py", "row['target']"),
        ("tables.py", "row['machine']")},
    "words of npuc: targets, layers by number, C's own names, registers, files": {("bisection.py", "target.name"),
        ("c_text.py", "text"), ("c_text.py", "name"), ("c_export.py", "name"), ("c_export.py", "title"),
        ("c_export.py", "text"), ("kernel.py", "name"), ("kernel.py", "title"), ("kernel.py", "region.name"),
        ("c_code.py", "each.name"), ("c_code.py", "text"), ("composite.py", "name"), ("files.py", "path.name"),
        ("running.py", "each.layer"), ("assembling.py", "name"), ("post_processing.py", "name"),
        ("test_programs.py", "each.name"), ("host.py", "name"), ("program.py", "trace.name"),
        ("program.py", "name"), ("program.py", "region"), ("program.py", "source"),
        ("program.py", "command.source"), ("program.py", "title"), ("program.py", "register.title"),
        ("frozen.py", "each.name"), ("build.py", "kept.name"), ("build.py", "Path(tool).name"),
        ("core.py", "name"), ("verilog.py", "name"), ("verilog.py", "self.name"), ("verilog.py", "label"),
        ("verilog.py", "text"), ("disassembly.py", "text"), ("table.py", "call.name"), ("loops.py", "self.text")},
    "identifiers of C: an artefact with any other is refused (Contents._check_regions)": {("kernel.py", "region"),
        ("table.py", "region")},
}  # fmt: skip
"""By file and expression: why it needs no escape there."""
EXCUSED = frozenset().union(*OURS.values())


def last_word(expression: ast.expr) -> str:
    """tensor of `move.tensor`, `entry["tensor"]` and `tensor[3:]`; nothing of a call."""
    match expression:
        case ast.Subscript(slice=ast.Constant(value=str(word))):
            return word
        case ast.Subscript(value=inner) | ast.Starred(value=inner):
            return last_word(inner)
        case ast.Attribute(attr=word) | ast.Name(id=word):
            return word
        case ast.Call(func=ast.Attribute(attr="join", value=ast.Constant()), args=[inner]):
            return last_word(inner)
        case ast.Call(func=ast.Name(id="str" | "short"), args=[inner, *_]):
            return last_word(inner)
        case _:
            return ""


def writes_lines(tree: ast.Module) -> bool:
    """Whether a module makes text of several lines: it has a line end outside of its docstrings."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return any("\n" in text.value and id(text) not in said for text in texts)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def harmless(node: ast.AST) -> bool:
    """Whether what stands below is escaped, or will be (errors where they are printed), or comes from a Shown."""
    match node:
        case ast.Call():
            return called(node) in ESCAPES or called(node).endswith(ERRORS)
        case ast.Assign(targets=[ast.Name(id=word)]):
            return word in SAID
        case ast.FunctionDef(args=arguments):
            shown = [each.annotation for each in arguments.args if each.annotation]
            return any("Shown" in ast.unparse(each) for each in shown)
        case _:
            return False


def unescaped(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and expression of every name that an f-string, `%`, `+` or `.format` takes as it is."""
    if harmless(node):
        return
    match node:
        case ast.FormattedValue(value=value) if last_word(value) in NAMES:
            yield value.lineno, ast.unparse(value)
        case ast.BinOp(op=ast.Add(), left=left, right=right) if is_text(left) or is_text(right):
            yield from ((each.lineno, ast.unparse(each)) for each in (left, right) if last_word(each) in NAMES)
        case ast.Call(keywords=keywords) if called(node) in ("format", "substitute"):
            found = (each.value for each in keywords)
            yield from ((each.lineno, ast.unparse(each)) for each in found if last_word(each) in NAMES)
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from unescaped(child)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


LINES = re.compile(r"""\\n|(?:[=(\[{,+]|return|yield|from|in)\s*[a-z]*['\"]{3}""")
"""What stands in the source of all modules with a line end in a text: most need not be parsed."""


@cache
def writers() -> dict[Path, ast.Module]:
    paths = [path for folder in ("npuc", "passes", "targets") for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items() if LINES.search(text)}
    return {path: tree for path, tree in trees.items() if writes_lines(tree)}


def test_no_writer_puts_a_name_into_a_file_or_onto_a_terminal_as_it_is() -> None:
    trees = writers()
    assert {"summaries.py", "disassembly.py", "c_export.py", "kernel.py"} <= {path.name for path in trees}
    found = {(path, text): line for path, tree in trees.items() for line, text in unescaped(tree)}
    wrong = [f"{path}:{line}: {text}" for (path, text), line in found.items() if (path.name, text) not in EXCUSED]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line", [
    'f"/* {node.name} */\\n"', '"".join(f"<b>{each[\'tensor\']}</b>\\n" for each in layers)',
    '"// " + step.op + "\\n"', '"// {}\\n" + "{kernel}".format(kernel=contents.name)',
    'f"{title}\\n" + f"{short(tensor)}"', "f\"; {', '.join(entry['nodes'])}\\n\"",
])  # fmt: skip
def test_the_lint_finds_a_planted_name(line: str) -> None:
    tree = ast.parse(f"def written(node, layers):\n    return {line}\n")
    assert writes_lines(tree) and list(unescaped(tree))


@pytest.mark.parametrize("line", [
    'f"{c_comment(node.name)}\\n"', 'f"/* {count} */\\n"', 'ArtefactError("E502", f"{name} is damaged\\n")',
    '"a" + c_string(step.op) + "\\n"',
])  # fmt: skip
def test_the_lint_lets_escaped_names_and_errors_pass(line: str) -> None:
    assert not list(unescaped(ast.parse(f"def written(node, layers):\n    return {line}\n")))
