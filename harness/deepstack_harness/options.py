"""Options of a command that are declared once: by the fields of the record that is made of them."""

from argparse import ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields
from enum import EnumMeta
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from deepstack_harness.errors import unknown_name
from deepstack_harness.text import shortened

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

MOST = 10**9
"""Seconds, minutes or GiB without an end for every purpose; larger numbers overflow clocks and limits."""


def finite(text: str) -> float:
    """Read a number; argparse makes a usage error of `ArgumentTypeError`.

    `float` takes `nan` and `inf` as well: limits that nothing reaches, and that no comparison refuses.
    """
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) <= MOST:
        raise ArgumentTypeError(f"takes a number up to {MOST:,}, as in 1.5, not '{shortened(text, 200)}'")
    return number


def whole(text: str) -> int:
    """Read a whole number; argparse makes a usage error of `ArgumentTypeError`."""
    # Python reads no number of more than 4,300 digits.
    if not text.strip().lstrip("+-").isdecimal() or len(text) > 100 or abs(int(text)) > MOST:
        raise ArgumentTypeError(f"takes a whole number up to {MOST:,}, not '{shortened(text, 200)}'")
    return int(text)


def option(text: str, name: str = "", *, default: object = MISSING, **how: object) -> Any:  # noqa: ANN401
    """Return a field that is an option with this help; by keyword only where it has no default.

    Without a `name` the option is named for the field. `how` is for `ArgumentParser.add_argument`, but for
    `parse`, which makes the value of the field of the text that was given.
    """
    return field(default=default, metadata={"name": name, "help": text, **how}, kw_only=default is MISSING)


def _name(declared: Field[Any]) -> str:
    return str(declared.metadata["name"]) or f"--{declared.name.replace('_', '-')}"


def _repeated(kind: object) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def add_options(parser: _ActionsContainer, record: "type[DataclassInstance]", *wanted: str) -> None:
    """Add the options of a record, or those of the fields that are named, in this order.

    A field of type `bool` is a flag, and an option whose field is a sequence may be repeated.
    """
    hints, known = get_type_hints(record), {declared.name: declared for declared in fields(record)}
    for declared in (known[name] for name in wanted or known):
        if "help" not in declared.metadata:
            continue
        kind = hints[declared.name]
        how = {key: value for key, value in declared.metadata.items() if key not in ("name", "parse")}
        if kind is bool:
            how["action"] = "store_true"
        elif int in (kind, *get_args(kind)):
            how.setdefault("type", int)
        if _name(declared).startswith("-"):
            how |= {"dest": declared.name} | ({"action": "append"} if _repeated(kind) else {})
            how.setdefault(
                "default", None if _repeated(kind) or declared.default is MISSING else declared.default
            )
        parser.add_argument(_name(declared), **how)


def record_of(record: type[Record], args: Namespace, **others: Any) -> Record:
    """Return the record of what was given, and of `others`; a field that was not given has its default.

    Raises `UsageError` for a name that an enumeration does not have, and what `parse` raises.
    """
    hints, given = get_type_hints(record), dict(others)
    for declared in fields(record):
        value, kind = getattr(args, declared.name, None), hints[declared.name]
        if declared.name in others or value is None:
            continue
        if parse := declared.metadata.get("parse"):
            value = parse(value)
        elif isinstance(kind, EnumMeta):
            if value not in set(kind):
                raise unknown_name(_name(declared), value, list(kind))
            value = kind(value)
        elif _repeated(kind):
            value = tuple(dict.fromkeys(value))
        given[declared.name] = value
    return record(**given)
