"""One call that may go wrong: what it raised is a fact of it, unless it says nothing about the call."""

import pytest

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


def test_an_exception_of_another_process_keeps_its_place() -> None:
    error = RuntimeError("no")
    error.where = "rank.py:7"  # type: ignore[attr-defined]
    found = failing(error).raised
    assert found is not None
    assert found.where == "rank.py:7"


def test_a_failed_call_is_not_wrapped_again() -> None:
    with pytest.raises(CallFailed) as told:
        naming("set", lambda: naming("get", lambda: dict[str, int]()["row"]))
    assert told.value.call == "get"
    assert isinstance(told.value.error, KeyError)
