"""Callers by name: those of the registry, or a class of one's own as `MODULE:CLASS`."""

from deepstack_harness.callers.engine import Engine
from deepstack_harness.callers.sequence_parallel import SequenceParallel
from deepstack_harness.catalogue.registry import CALLERS, Entry, resolve
from deepstack_harness.contract.case import Case
from deepstack_harness.errors import UsageError


def caller_of(case: Case) -> Engine:
    """The caller of a case, made anew.

    Where ranks share a step, this process must be one of them.  Raises `UsageError`
    for an unknown name, and for a caller that shares no steps under an arm that does.
    """
    made, ranks = _caller_named(case.caller), case.arm.ranks
    if issubclass(made, SequenceParallel):
        return made(ranks)
    if ranks > 1 and made is Engine:
        return SequenceParallel(ranks)
    if ranks > 1:
        raise UsageError(
            f"caller '{case.caller}' shares no steps among ranks: under arm {case.arm.name} take engine, "
            "or a caller built on deepstack_harness.callers.sequence_parallel:SequenceParallel"
        )
    return made()


def _caller_named(name: str) -> type[Engine]:
    known = {name: Entry(name, "one's own")} if ":" in name else CALLERS
    try:
        found = resolve("caller", known, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"caller '{name}' cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise UsageError(f"caller '{name}' is no class built on deepstack_harness.callers.engine:Engine")
    return found
