"""The deepstack classes of a source, bound in both ways as far as that can be done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from deepstack_harness.binding.argument_class import ArgumentClass, Rehearsal
from deepstack_harness.binding.argument_files import ArgumentCut
from deepstack_harness.binding.cut_model import ModelCut
from deepstack_harness.binding.discover import FoundCut
from deepstack_harness.binding.forward_class import ForwardClass, ForwardModels, define_forward
from deepstack_harness.binding.methods_class import MethodsClass, define_methods
from deepstack_harness.binding.split_files import SplitCut
from deepstack_harness.binding.splitter import PayloadSplitter
from deepstack_harness.contract.buffer_ref import BufferRef
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, buffer_of

T = TypeVar("T")
NOT_REHEARSED = Rehearsal()


@dataclass(frozen=True)
class Found:
    """One class of `source`.

    `methods` drives its get, set and clear, or an engine whose payload is an argument, and `forward` its
    `embed_input_ids` and `forward`; `splits` splits a payload over ranks.  `refusals` say why they are None.
    `note` says what the class shares with another one, and `graphs` what graphs of an engine lose.
    """

    source: Source
    model_class: str
    member: str
    methods: MethodsClass | ForwardModels | ArgumentClass | None = None
    forward: ForwardModels | None = None
    refusals: tuple[str, ...] = ()
    note: str = ""
    graphs: Rehearsal = NOT_REHEARSED
    splits: PayloadSplitter | None = None

    @property
    def buffer(self) -> BufferRef:
        """The reference by which cases and rows name the class."""
        return buffer_of(self.source, self.model_class)


def define_found(
    source: Source, found: FoundCut, by_methods: Callable[[ModelCut], MethodsClass] = define_methods
) -> Found:
    """Define a class in each way in which it was cut; an engine around it is left out.

    `by_methods` defines it by its get, set and clear.
    """
    assert not isinstance(found.methods, ArgumentCut | SplitCut)
    methods = _defined_or_why(by_methods, found.methods)
    forward = _defined_or_why(define_forward, found.forward)
    return Found(
        source,
        found.model_class,
        found.member,
        methods if isinstance(methods, MethodsClass) else None,
        forward if isinstance(forward, ForwardClass) else None,
        tuple(why for why in (methods, forward) if isinstance(why, str) and why),
        found.note,
    )


def _defined_or_why(define: Callable[[ModelCut], T], cut: ModelCut | str) -> T | str:
    if isinstance(cut, str):
        return cut
    try:
        return define(cut)
    except UsageError as error:
        return str(error)
