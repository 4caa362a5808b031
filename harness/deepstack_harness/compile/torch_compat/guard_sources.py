"""Expressions that guards read: names for people, and relations of sizes with the line that needed them.

Read in torch 2.13: `ShapeEnv.produce_guards_verbose` writes RELATION, two blanks, '#', and a reason: the line
of code with its file, or a sentence of torch's own; for `2 <= size <= 100` the reasons of both bounds, joined
by 'and'. Files are shortened by what they have in common with the place of torch (`shorten_filename`).
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

_READABLE: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"[LG]\['(\w+)'\]", r"\1"),
    (r"__import_(\w+)", lambda match: match[1].replace("_dot_", ".")),
    (r"(?:\._(?:modules|parameters|buffers)|\.__dict__)\['(\d+)'\]", r"[\1]"),
    (r"(?:\._(?:modules|parameters|buffers)|\.__dict__)\['(\w+)'\]", r".\1"),
    (r"\.size\(\)\[(\d+)\]", r".shape[\1]"),
    (r"\.stride\(\)\[(\d+)\]", r".stride(\1)"),
)


PRESENCE, GONE, SHAPE, ALIAS, UNNAMED = "PRESENCE", "GONE", "SHAPE_ENV", "NO_TENSOR_ALIASING", "UNNAMED"
"""Kinds of failed leaves that are no class of torch: the value is gone; it cannot be read; sizes; two tensors
that became one; a failure of the tree that belongs to none of its leaves."""
DUPLICATE = "DUPLICATE_INPUT"
"""The kind of a guard on two names of one tensor."""
OWN_GUARD = "deepstack_harness_watches"
"""The text of our own guard, which always holds, in torch's descriptions of a tree."""


@cache
def readable(source: str) -> str:
    """Return an expression of a guard as a user writes it: `L['self'].factor` is `self.factor`.

    >>> readable("G['__import_vllm_dot_forward_context']._forward_context")
    'vllm.forward_context._forward_context'
    """
    for pattern, replacement in _READABLE:
        source = re.sub(pattern, replacement, source)
    return source


@dataclass(frozen=True)
class SizeRelation:
    """A relation of sizes, strides or numbers that a graph was traced under.

    `text` is torch's Python of it, `subject` the part that is compared and `assumed` what was assumed of it:
    for `6 <= L['x'].size()[0]` the subject is `L['x'].size()[0]` and "6 or more" was assumed. `where` is
    FILE:LINE of the line `code` that needed it; without one, `reason` is the reason that torch gives.
    `specialised` is True for a bound that comes from torch's 0/1 specialisation and from no user code.
    """

    text: str
    subject: str
    assumed: str
    where: str = ""
    code: str = ""
    reason: str = ""
    specialised: bool = False


_BOUNDS = re.compile(r"(-?\d+) <= (.+) <= (-?\d+)")
_PLACE = re.compile(
    r"(?:^|(?<=\) and ))(?P<code>.*?)  # (?P<file>[^#\n]+?):(?P<line>\d+) in \S+ \((?P<why>\S+)"
)
_SPECIALISED = "0/1 specialization"  # torch's own note, 2.10 .. 2.15


def size_relations(part: str) -> Iterator[SizeRelation]:
    """Yield the relations of one part of torch's verbose code: two for a number between two bounds."""
    text, _, reason = part.partition("  # ")
    text = text.strip()
    places = list(_PLACE.finditer(reason))
    bounds = _BOUNDS.fullmatch(text)
    if bounds is None:
        yield _relation(text, places[0] if places else None, reason)
        return
    lower, middle, upper = bounds.groups()
    first = places[0] if places else None
    last = places[-1] if len(places) > 1 or _SPECIALISED not in reason else None
    yield _relation(f"{lower} <= {middle}", first, reason if len(places) < 2 else reason[: places[1].start()])
    yield _relation(f"{middle} <= {upper}", last, "" if last is None else reason[last.start() :])


def _relation(text: str, place: re.Match[str] | None, reason: str) -> SizeRelation:
    subject, assumed = text, "true"
    match ast.parse(text, mode="eval").body:
        case ast.Compare(left, [operator], [right]) if type(operator) in _WORDS:
            flipped = isinstance(left, ast.Constant)
            compared, other = (right, left) if flipped else (left, right)
            subject = ast.unparse(compared)
            assumed = _WORDS[type(operator)][flipped].format(readable(ast.unparse(other)))
    if _SPECIALISED in reason:
        note = "torch's 0/1 specialisation: no line of the program compares it"
        return SizeRelation(text, subject, assumed, reason=note, specialised=True)
    if place is not None:
        return SizeRelation(
            text, subject, assumed, f"{_file(place['file'])}:{place['line']}", place["code"].strip()
        )
    if "duck sizing" in reason:
        reason = "no line of the program compares them: they were equal when compiled"
    elif "unknown source" in reason or not reason:
        reason = "torch does not give the line that needs it"
    return SizeRelation(text, subject, assumed, reason=reason)


def name_sizes_as_read(relations: Sequence[SizeRelation]) -> Iterator[SizeRelation]:
    """Yield relations without repetitions, each about the size that its line of code reads.

    Sizes that were equal when compiled have one symbol, and torch writes a relation for the first of them:
    `if positions.shape[0] < 4` may give one for `input_ids.shape[0]`, and `positions.shape[0] ==
    input_ids.shape[0]`.
    """
    equal = [set(relation.text.split(" == ")) for relation in relations if relation.text.count(" == ") == 1]
    named = []
    for relation in relations:
        subject, text = relation.subject, relation.text
        same = {other for sides in equal if subject in sides for other in sides}
        read = [other for other in sorted(same) if readable(other) in relation.code]
        if read and subject in text and readable(subject) not in relation.code:
            named.append(replace(relation, subject=read[0], text=text.replace(subject, read[0])))
        else:
            named.append(relation)
    yield from dict.fromkeys(named)


_WORDS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.LtE: ("at most {}", "{} or more"),
    ast.GtE: ("{} or more", "at most {}"),
    ast.Lt: ("less than {}", "more than {}"),
    ast.Gt: ("more than {}", "less than {}"),
    ast.Eq: ("equal to {}", "equal to {}"),
    ast.NotEq: ("other than {}", "other than {}"),
}
"""What is assumed of the left side, and of the right side where a number is on the left."""


@cache
def _file(shortened: str) -> str:
    """Return the whole path of a file that torch has shortened, as far as it is found."""
    base = Path(torch.__path__[0]).parent
    candidates = (parent / shortened for parent in (base, *base.parents))
    return next((str(path) for path in candidates if path.exists()), shortened)
