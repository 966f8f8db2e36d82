"""Mutations of bytes, JSON values, protobuf messages and lines of text, by a seeded generator."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import onnx

ABSURD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 3, 255, 256, 1 << 16, 1 << 24, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 63, -(1 << 63),
    1 << 70, 10**400, 0.5, -1.5, 1e308, float("inf"), float("nan"), "", "x", "int8", "float32", "../../etc/passwd",
    "a\nhalt", "\x1b[2J", "*/ int x; /*", "\ud800", [], [0], [1, 2], [[]], [1 << 40] * 5, {}, {"a": 1},
)  # fmt: skip
NUMBERS = tuple(each for each in ABSURD if type(each) is int and abs(each) < 1 << 63)


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Some bits, a byte, a cut, a repeated, exchanged or inserted piece."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        at = chance.randrange(len(made) + 1)
        piece = made[at : at + chance.choice((1, 2, 4, 16, 256))]
        match chance.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(made):
                made[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 2:
                del made[at : at + len(piece)]
            case 3:
                made[at:at] = piece * chance.choice((1, 1, 2, 100))
            case 4:
                made[at : at + 8] = chance.choice(NUMBERS).to_bytes(9, "little", signed=True)[:8]
            case 5 if chance.random() < 0.2:
                del made[at:]
            case _:
                other = chance.randrange(len(made) + 1)
                made[other : other + len(piece)] = piece
    return bytes(made)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be changed in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*at, key)
        yield from places(each, (*at, key))


def changed_json(value: Any, chance: random.Random, skip: tuple[str, ...] = ()) -> Any:
    """A copy in which a value or two are absurd, gone, moved or doubled."""
    made = json.loads(json.dumps(value))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        groups: dict[Any, list[tuple[Any, ...]]] = {}
        for at in places(made):
            if at[0] not in skip:
                groups.setdefault(tuple("*" if isinstance(key, int) else key for key in at), []).append(at)
        if not groups:
            break
        *parents, last = chance.choice(groups[chance.choice(sorted(groups, key=str))])
        holder = made
        for key in parents:
            holder = holder[key]
        _change(holder, last, chance)
    return made


def _change(holder: Any, last: Any, chance: random.Random) -> None:
    value = holder[last]
    match chance.randrange(6):
        case 0:
            del holder[last]
        case 1 if isinstance(holder, list):
            holder.extend([value] * chance.choice((1, 1, 10)))
        case 2 if type(value) in (int, float) and not isinstance(value, bool):
            holder[last] = value + chance.choice((1, -1, value, 1 << 20))
        case 3 if isinstance(value, list) and value:
            chance.shuffle(value)
        case _:
            holder[last] = copy.deepcopy(chance.choice(ABSURD))


def changed_model(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """A model with some fields of some messages changed, serialised; or with changed bytes."""
    if chance.random() < 0.25:
        return changed_bytes(model.SerializeToString(), chance)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        messages = list(_messages(made))
        _change_field(chance.choice(messages), made, chance)
    return made.SerializeToString()


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                yield from _messages(each)


def _change_field(message: Any, model: onnx.ModelProto, chance: random.Random) -> None:
    found = message.ListFields()
    if not found:
        return
    field, value = chance.choice(found)
    names = [name for node in model.graph.node for name in (*node.input, *node.output)] or [""]
    draw: Callable[[], Any] = {
        field.CPPTYPE_STRING: lambda: chance.choice(
            (chance.choice(names), "", "Conv", "Reshape", "Loop", "a\n*/\x1b", "x" * 300)
        ),
        field.CPPTYPE_FLOAT: lambda: chance.choice((0.0, -1.0, 1e38, float("inf"), float("nan"))),
    }.get(field.cpp_type, lambda: chance.choice(NUMBERS))  # fmt: skip
    if field.type == field.TYPE_BYTES:
        draw = lambda: bytes(chance.choice((0, 1, 7, 64)))  # noqa: E731
    try:
        if field.is_repeated and chance.random() < 0.5:
            if chance.random() < 0.4:
                del value[chance.randrange(len(value))]
            elif field.message_type is not None:
                value.append(value[chance.randrange(len(value))])
            else:
                value.append(draw())
        elif field.message_type is not None:
            message.ClearField(field.name)
        elif field.is_repeated:
            value[chance.randrange(len(value))] = draw()
        else:
            setattr(message, field.name, draw())
    except (ValueError, TypeError, OverflowError):  # beyond the field's range
        message.ClearField(field.name)


def changed_lines(text: str, chance: random.Random) -> str:
    """A text with lines doubled, gone or exchanged, and numbers or words changed."""
    lines = text.split("\n")
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(lines))
        words = lines[at].split(" ")
        match chance.randrange(4):
            case 0:
                del lines[at : at + 1]
                lines = lines or [""]
            case 1:
                lines.insert(at, chance.choice(lines))
            case _:
                word = chance.randrange(len(words))
                key, equals, _ = words[word].partition("=")
                value = str(chance.choice(ABSURD)) if chance.random() < 0.7 else words[word][::-1]
                words[word] = f"{key}{equals}{value}"
                lines[at] = " ".join(words)
    return "\n".join(lines)
