"""Errors and warnings of npuc: a block with code, node, operator, tensor, reason, limit and remedy.

Every error that a user can cause is an NpucError; a traceback always means a bug in npuc. The codes are stable: a
meaning never moves to another number (docs/errors.md is generated from CODES).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from npuc.frozen import frozen
from npuc.text.escaping import terminal

NEEDLESS = "W201"
"""The code of a node that the target could run, but that lies between nodes of the host."""
HOST_STEP = "W204"
"""The code of a node that the target's own program leaves to the host."""
AMBIGUOUS = "E112"
"""The code of a node that may mean two things, on the host too."""

CODES: dict[str, str] = {
    # the model
    "E101": "the model file cannot be read",
    "E102": "the file is not an ONNX model, or it is damaged",
    "E103": "the opset is newer or older than this version understands",
    "E104": "the graph is not well formed (cycle, undefined tensor, duplicate name)",
    "E105": "a node's inputs contradict its operator (shapes, types, attributes)",
    "E106": "a dimension is not known at compile time",
    "E107": "the element type is not supported",
    "E108": "external data lies outside the model's folder, or is missing or too short",
    "E109": "an --input-shape, a --bind, a --deny, a --layer or a cut does not fit the model",
    "E110": "the model needs more memory than the limit",
    "E111": "onnxruntime takes longer for the model than the limit",
    AMBIGUOUS: "ONNX's text and onnxruntime read a node differently, and the model does not say which it means",
    # operators
    "E201": "the operator is not known to npuc",
    "E202": "the target does not run this operator in this form",
    "E203": "a host step would be needed, and --strict refuses host steps",
    "E204": "the extension words would be needed, and --isa documented refuses them",
    "E205": "a quantised form of this operator is not available",
    # the machine's limits
    "E301": "a value does not fit its field in the instruction word",
    "E302": "a tensor does not fit into a memory of the machine",
    "E303": "no tile of the layer fits the scratch pads",
    "E304": "the accumulator could overflow",
    "E305": "the machine description is not valid",
    # data
    "E401": "a data file cannot be read or lacks an input",
    "E402": "the data has the wrong shape or type",
    "E403": "the data needs more memory than the limit",
    "E404": "scales have to be chosen, and nobody said from which samples",
    "E405": "the description of an image input is not valid, or does not fit the model",
    "E406": "a table of scales is not valid, or contradicts the model or the machine",
    # artefacts and listings
    "E501": "this is not an npuc artefact, or not one of this version",
    "E502": "a file of the artefact is missing, truncated or changed",
    "E503": "the program cannot run on the machine it names",
    "E504": "the listing cannot be assembled",
    "E505": "the output exists and is not an npuc artefact, or holds more than npuc wrote",
    "E506": "the output cannot be written",
    "E507": "a tool or library that the program needs to run is missing, or fails",
    "E508": "the program has nothing of that name",
    "E509": "the program, or what it leaves to the host, needs more memory or time than the limit",
    # results
    "E601": "the results differ by more than the tolerance",
    "E602": "simulator and integer reference differ",
    "E603": "the compiled program does not compute what the model says: a defect of npuc, and nothing is written",
    # npuc itself
    "E901": "npuc fails where it should not: a defect of npuc, not of the model",
    # warnings: the program is written nevertheless
    NEEDLESS: "a layer runs on the host, as on the NPU it would only add transfers",
    "W202": "a layer runs on the host, as --deny asks",
    HOST_STEP: "a layer runs on the host, as the target's programs leave it to the host",
    "W205": "a layer runs on the host, as scores that are ranked would be equal in 8 bits",
    "W301": "values of a tensor lie beyond the range of the precision",
    "W302": "an output of the program is hardly more than noise",
    "W303": "the program means something else than onnxruntime, as decided; the distance is measured",
    "W304": "an output of a floating-point program has fewer correct digits than its precision allows",
    "W305": "a table of scales has tensors that the program does not store as integers",
}

_AGAIN = "compile the model again: npuc compile MODEL.onnx --target TARGET"
_LARGER = "use a machine with larger memories or fields (--machine FILE), or smaller layers"
_HOST = "let the host run it (leave out --strict), or change the model as the limit says"
IN_FLOAT = "--deny NODE, or --precision mixed where the target has it, keeps layers in float"
"""The remedy for layers that lose too much."""
REMEDIES: dict[str, str] = {
    "E101": "give the path of an .onnx file",
    "E102": "export or download the model again; onnx.checker.check_model says more",
    "E103": "convert the model with onnx.version_converter",
    "E104": "correct the graph where it is exported; onnx.checker.check_model finds such errors",
    "E105": "correct the node where it is exported; onnx.checker.check_model(path, full_check=True) says more",
    "E106": "bind it: --input-shape NAME=1,3,224,224",
    "E107": "export the model with float32 tensors",
    "E108": "keep the model and its data files in one folder, as they were exported",
    "E109": "give names and shapes as the model has them",
    "E110": "raise --memory-limit",
    "E111": "raise NPUC_TIME_LIMIT",
    AMBIGUOUS: "write the node in a form that both read alike",
    "E201": "write it with standard ONNX operators",
    "E202": _HOST,
    "E203": "leave out --strict, or write the node with operators that `npuc operators --target TARGET` lists",
    "E204": "leave out --isa documented",
    "E205": "let the host run it (leave out --strict), or export the model in float32",
    **dict.fromkeys(("E301", "E302", "E303"), _LARGER),
    "E304": "use a machine with wider accumulators (--machine FILE), or a layer with fewer products per sum",
    "E305": "correct the machine file; the target's page describes its keys, and `npuc targets` lists machines",
    "E401": "give an .npz file with an array of numbers for every input",
    "E402": "give each input an array of finite numbers in its shape, with the samples along axis 0",
    "E403": "use fewer samples, or raise --memory-limit",
    "E404": "give typical samples: --calibration FILE.npz; --calibration synthetic does without, for trials",
    "E405": "correct it as the limit says; docs/photos.md describes the keys",
    "E406": "correct the table of scales; docs/quantisation.md describes it",
    "E501": f"give the folder that npuc compile wrote, or {_AGAIN}",
    "E502": _AGAIN,
    "E503": "compile the model for this machine, and give data for which its operators are defined",
    "E504": "correct the listing; `npuc dump --layout --target TARGET` shows every field",
    "E505": "choose another output",
    "E506": "choose an output that you may write to, with room for it",
    "E507": "install it",
    "E508": "`npuc dump OUT --json` lists the names",
    "E509": "raise --memory-limit or NPUC_TIME_LIMIT",
    "E601": "`npuc verify --bisect` names the layer that loses the most",
    "E602": "`npuc verify --bisect` finds the first difference",
    "E603": "report it with the model and this command",
    "E901": "report it with the model, this command and these lines; NPUC_TRACEBACK=1 tells more",
}
"""What to do about an error whose place knows nothing better."""


@frozen
class Problem:
    """An error or a warning, with everything a user needs to fix it. Unknown facts are None."""

    code: str
    reason: str
    node: str | None = None
    op: str | None = None
    tensor: str | None = None
    limit: str | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        where = " ".join(filter(None, (self.op, self.node and f"'{self.node}'")))
        if self.tensor:
            where = f"{where}, tensor '{self.tensor}'" if where else f"tensor '{self.tensor}'"
        kind = "warning" if self.code.startswith("W") else "error"
        lines = [f"{kind}[{self.code}] {where + ': ' if where else ''}{self.reason}"]
        if self.limit:
            lines.append(f"  limit: {self.limit}")
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(map(terminal, lines))

    @property
    def help(self) -> str | None:
        """Its own remedy, or the usual one for its code; None for some warnings."""
        return self.remedy or REMEDIES.get(self.code)

    def as_json(self) -> dict[str, str | None]:
        """The fields of the command line's JSON contract."""
        return {**asdict(self), "remedy": self.help}

    def on(self, target: str) -> Problem:
        """The same, naming the target in the commands of the remedy."""
        return replace(self, remedy=self.help and self.help.replace("--target TARGET", f"--target {target}"))


class NpucError(Exception):
    """Base of everything a user can cause; holds one or more problems.

    >>> print(ModelError("E104", "two nodes write it", tensor="y", remedy="rename one"))
    error[E104] tensor 'y': two nodes write it
      help: rename one
    """

    def __init__(
        self,
        code: str,
        reason: str,
        *,
        node: str | None = None,
        op: str | None = None,
        tensor: str | None = None,
        limit: str | None = None,
        remedy: str | None = None,
    ) -> None:
        if code not in CODES:
            raise KeyError(f"undeclared error code {code}")
        self.problems: tuple[Problem, ...] = (Problem(code, reason, node, op, tensor, limit, remedy),)
        super().__init__(reason)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the error with all its problems, for other processes."""
        return type(self).of, (self.problems,)

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> NpucError:
        """One error with several problems; called on the base class, an error of the first problem's kind."""
        gathered = tuple(problems)
        first = gathered[0]
        kind = cls if cls is not NpucError else KINDS[first.code[1]]
        error = kind(first.code, first.reason)
        error.problems = gathered
        return error

    def within(self, where: str) -> NpucError:
        """The same error, with its origin added to each reason."""
        return type(self).of(replace(each, reason=f"{each.reason} ({where})") for each in self.problems)

    def advising(self, remedy: str) -> NpucError:
        """The same error with another remedy: what helps with the file that was given."""
        return type(self).of(replace(each, remedy=remedy) for each in self.problems)


class ModelError(NpucError):
    """The model file is at fault."""


class UnsupportedOperator(NpucError):
    """The model is sound; npuc or the target cannot run it in this form."""


class DoesNotFit(NpucError):
    """A memory, a scratch pad or a field of the machine is too small."""


class DataError(NpucError):
    """A data file is at fault."""


class ArtefactError(NpucError):
    """The compiled program or a listing is at fault, or cannot be written."""


class EncodingError(NpucError):
    """A value does not fit its field, or a word cannot be decoded."""


class Mismatch(NpucError):
    """Two results that should agree do not."""


class Defect(Exception):
    """npuc fails where it should not: never the user's fault. Nothing else is tried; the cause is the failure."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.reason)

    @classmethod
    def of(cls, error: Exception, doing: str = "", node: str | None = None, op: str | None = None) -> Defect:
        """The defect (E901) that an exception shows, with the place where it was raised; itself if it is one.

        doing: what npuc was doing, for the message: "in pass X".
        """
        if isinstance(error, Defect):
            return error
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        place = f" in {Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}" if last is not None else ""
        reason = f"{type(error).__name__}{place}{doing and f', {doing}'}: {error}"
        return cls(Problem("E901", reason, node, op))

    def __str__(self) -> str:
        return str(self.problem)


KINDS: dict[str, type[NpucError]] = {
    "1": ModelError,
    "2": UnsupportedOperator,
    "3": DoesNotFit,
    "4": DataError,
    "5": ArtefactError,
    "6": Mismatch,
    "9": NpucError,
}
"""The error class by the first digit of the code. (An EncodingError is raised by encoding, as E301.)"""
