"""One call that may go wrong: what it raised is a fact of it, unless the call has no part in it."""

from collections.abc import Callable

import pytest

from cases.selftest.play.misbehaving_buffers import Textless
from deepstack_harness.errors import MachineError, OutOfMemory
from deepstack_harness.play.attempt import Attempt, CallFailed, attempt, naming


def failing(error: BaseException) -> Attempt[None]:
    def call() -> None:
        raise error

    return attempt("decoder", lambda: naming("get", call))


def test_the_innermost_call_is_named() -> None:
    """A get inside a set inside the decoder raised: neither the set nor the decoder did."""

    def call() -> None:
        raise ValueError("no rows")

    found = attempt("decoder", lambda: naming("set", lambda: naming("get", call))).raised
    assert found is not None
    assert (found.call, found.type, found.message) == ("get", "ValueError", "no rows")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), pytest.fail.Exception("over"), pytest.skip.Exception("not here")], ids=repr
)
def test_what_ends_the_command_or_the_test_is_no_fact_of_a_call(error: BaseException) -> None:
    with pytest.raises(type(error)):
        failing(error)


def test_an_error_of_ours_is_no_fact_of_the_decoder() -> None:
    def call() -> None:
        raise MachineError("no compiler")

    with pytest.raises(MachineError, match="no compiler"):
        attempt("decoder", call)


def test_memory_that_runs_out_by_itself_is_no_fact_of_the_call() -> None:
    def call() -> None:
        raise MemoryError("can't allocate memory")

    with pytest.raises(OutOfMemory, match="^decoder ran out of memory: can't allocate memory$"):
        attempt("decoder", call)
    found = attempt("decoder", call, runs_out=True).raised
    assert found is not None
    assert found.type == "MemoryError"


def test_an_exception_of_another_process_has_its_own_place() -> None:
    error = RuntimeError("no")
    error.where = "rank.py:7"  # type: ignore[attr-defined]
    found = failing(error).raised
    assert found is not None
    assert found.where == "rank.py:7"


def test_a_failed_call_is_not_wrapped_again() -> None:
    with pytest.raises(CallFailed) as caught:
        naming("set", lambda: naming("get", lambda: dict[str, int]()["row"]))
    assert caught.value.call == "get"
    assert isinstance(caught.value.error, KeyError)


class Pretends(str):
    """A text whose methods are not those of `str`."""

    __slots__ = ()

    def strip(self, _: str | None = None) -> str:
        raise RuntimeError("not here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (Textless.__str__, "(its text cannot be had: SystemExit)"),
        (lambda _: 7, "(its text cannot be had: TypeError)"),
        (lambda _: Pretends("said"), "said"),
    ],
    ids=["it exits", "no text", "a subclass"],
)
def test_an_exception_without_a_text_is_named_by_its_type(
    text: Callable[[BaseException], object], message: str
) -> None:
    def where(_: BaseException) -> str:
        raise RuntimeError("nowhere")

    error = type("Own", (Exception,), {"__str__": text, "where": property(where)})()
    found = failing(error).raised
    assert found is not None
    assert (found.call, found.type, found.message) == ("get", "Own", message)
    assert found.where.startswith(__file__)


def test_ctrl_c_while_a_text_is_made_ends_the_command() -> None:
    def interrupt(_: BaseException) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing(type("Own", (Exception,), {"__str__": interrupt})())
