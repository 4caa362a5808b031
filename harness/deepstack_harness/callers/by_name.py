"""Callers by name: ours, those of other packages, and a class of the user's own as MODULE:CLASS."""

from typing_extensions import TypeIs

from deepstack_harness.callers.engine import Engine
from deepstack_harness.callers.sequence_parallel import SequenceParallel
from deepstack_harness.catalogue.names import imported
from deepstack_harness.catalogue.registry import CALLERS
from deepstack_harness.contract.case import Case
from deepstack_harness.errors import UsageError

_WANTED = "a class built on deepstack_harness.callers.engine:Engine"


def caller_of(case: Case) -> Engine:
    """Make the caller of a case.

    Under an arm whose ranks share a step, this process must be one of the ranks.  Raises
    `UsageError` for an unknown name, and for a caller that cannot share steps under such an arm.
    """
    made, ranks = _caller_named(case.caller), case.arm.ranks
    if issubclass(made, SequenceParallel):
        return made(ranks)
    if ranks > 1 and made is Engine:
        return SequenceParallel(ranks)
    if ranks > 1:
        raise UsageError(
            f"caller '{case.caller}' cannot share a step among ranks: under arm {case.arm.name} take engine, "
            "or a caller built on deepstack_harness.callers.sequence_parallel:SequenceParallel"
        )
    return made()


def _caller_named(name: str) -> type[Engine]:
    return _own_class(name) if ":" in name else CALLERS.load(name, _is_caller, _WANTED)


def _own_class(target: str) -> type[Engine]:
    try:
        found = imported(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"caller '{target}' cannot be imported: {error}") from None
    if not _is_caller(found):
        raise UsageError(f"caller '{target}' is not {_WANTED}")
    return found


def _is_caller(found: object) -> TypeIs[type[Engine]]:
    return isinstance(found, type) and issubclass(found, Engine)
