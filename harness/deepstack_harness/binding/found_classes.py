"""The deepstack classes of a source, bound in both ways as far as that can be done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from deepstack_harness.binding.cut_model import ModelCut
from deepstack_harness.binding.discover import FoundCut, ModelFiles, find_cuts
from deepstack_harness.binding.forward_class import ForwardClass, define_forward
from deepstack_harness.binding.methods_class import MethodsClass, define_methods
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source

T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """One class of `source`.

    `methods` drives its get, set and clear, `forward` its `embed_input_ids` and `forward`.
    `refusals` say why the first, or the second, or both are None.  `note` says what the class
    shares with another one.
    """

    source: Source
    model_class: str
    member: str
    methods: MethodsClass | None = None
    forward: ForwardClass | None = None
    refusals: tuple[str, ...] = ()
    note: str = ""


def find_classes(source: Source, files: ModelFiles) -> list[Found]:
    """Find, cut and define all deepstack classes of a source; raise what `find_cuts` raises."""
    return [define_found(source, found) for found in find_cuts(source, files)]


def define_found(source: Source, found: FoundCut) -> Found:
    """Define a class in each way in which it was cut."""
    methods = _defined_or_why(define_methods, found.methods)
    forward = _defined_or_why(define_forward, found.forward)
    return Found(
        source,
        found.model_class,
        found.member,
        methods if isinstance(methods, MethodsClass) else None,
        forward if isinstance(forward, ForwardClass) else None,
        tuple(why for why in (methods, forward) if isinstance(why, str)),
        found.note,
    )


def _defined_or_why(define: Callable[[ModelCut], T], cut: ModelCut | str) -> T | str:
    if isinstance(cut, str):
        return cut
    try:
        return define(cut)
    except UsageError as error:
        return str(error)
