"""Accidents and attacks of code under test on the code that measures it, in a worker."""

import sys
from types import ModuleType
from typing import Any


def _module(name: str) -> Any:  # noqa: ANN401  # a module
    module: ModuleType = sys.modules[f"deepstack_harness.{name}"]
    return module


def forget_payloads() -> None:
    _module("play.rows").RowOwners.remember = lambda *_: None


def see_zeros() -> None:
    rows = _module("play.rows")
    rows.RowOwners.runs_of = lambda _, levels: tuple(
        (rows._ZERO._replace(rows=level.size(0)),) for level in levels
    )


def answer_none() -> None:
    lane = _module("play.lane")
    lane.answer_facts = lambda *_: _module("contract.observation").Answer("none")


def play_reference_instead() -> None:
    """Let every buffer be a right one: what is measured is right, whatever the code does."""
    reference = _module("models.reference").ReferenceBuffer
    for module in (_module("play.play_case"), _module("catalogue.buffers")):
        for name in ("factory_of", "buffer_named"):
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: reference)


def break_torch() -> None:
    sys.modules["torch"].Tensor.copy_ = lambda self, *_, **__: self


def exit_always() -> None:
    _module("play.work").play_case = lambda *_, **__: sys.exit(0)


def replace_everything_with_nothing() -> None:
    _module("play.work").play_case = lambda *_, **__: None


FORGERIES = (
    forget_payloads, see_zeros, answer_none, play_reference_instead, break_torch, exit_always,
    replace_everything_with_nothing,
)  # fmt: skip
