"""The tables of `selftest`: each buffer and the commands that caught it, and the same by class of fault.

Both fit into 80 columns; the shrunk traces are in the rows of `--json`.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from textwrap import wrap

from deepstack_harness.reporting.terminal.output import Column, Output
from deepstack_harness.selftest.trials import Proof

_COLUMNS = (
    Column(31), Column(4), Column(16), Column(5, right=True), Column(5, right=True), Column(7, right=True),
)  # fmt: skip
_HEAD = ("buffer", "rule", "class of fault", "check", "fuzz", "seconds")
_CLASS_COLUMNS = (
    Column(16), Column(7, right=True), Column(8, right=True), Column(7, right=True), Column(15, right=True),
    Column(13, right=True),
)  # fmt: skip
_CLASS_HEAD = ("class of fault", "mutants", "by check", "by fuzz", "examples median", "examples most")
_WIDTH = 80


class SelftestTable:
    """One row for each proof, in the order in which they come; then one for each class of fault."""

    def __init__(self, output: Output) -> None:
        """Print the head."""
        self._output = output
        self._proofs: list[Proof] = []
        output.line("check, fuzz: number of the trace or example that shows the fault first; - none")
        output.row(_COLUMNS, _HEAD, "bold")

    def show(self, proof: Proof) -> None:
        """Print one row; what is wrong with a proof that does not hold stands under it."""
        self._proofs.append(proof)
        trial, style = proof.trial, "" if proof.holds else "red"
        figures = [_number(proof.caught_by_check), _number(_examples(proof)), f"{proof.seconds:.1f}"]
        self._output.row(_COLUMNS, [trial.subject, trial.rule or "none", trial.fault, *figures], style)
        for line in wrap(_wrong(proof), _WIDTH - 4):
            self._output.line(f"    {line}", style)
        self._output.record(record_of(proof))

    def close(self, seconds: float) -> bool:
        """Print the classes of faults and the last lines; return whether everything holds."""
        mutants = [proof for proof in self._proofs if proof.trial.rule]
        right = [proof for proof in self._proofs if not proof.trial.rule]
        missed = [proof.trial.subject for proof in mutants if not proof.holds]
        refused = [f"{proof.trial.subject} [{proof.trial.arm}]" for proof in right if not proof.holds]
        self._output.line()
        self._output.row(_CLASS_COLUMNS, _CLASS_HEAD, "bold")
        for cells in _classes(mutants):
            self._output.row(_CLASS_COLUMNS, cells)
        self._output.line()
        played, checked = (sum(getattr(proof, key) for proof in right) for key in ("examples", "checked"))
        named = len({proof.trial.subject for proof in right})
        self._output.line(
            f"{len(refused)} false alarms on {named} right buffers in {played} examples and {checked} traces"
        )
        good = not missed and not refused
        for line in wrap(f"not so: {', '.join([*missed, *refused])}", _WIDTH) if not good else ():
            self._output.line(line, "red")
        said = f"{len(mutants) - len(missed)} of {len(mutants)} mutants caught, each by its rule alone"
        self._output.verdict(f"{said}; {seconds:.0f} s", good=good)
        return good


def record_of(proof: Proof) -> dict[str, object]:
    """Return a proof as `--json` gives it, flat."""
    trial = proof.trial
    return {
        "schema_version": 1, "buffer": trial.subject, "rule": trial.rule, "fault": trial.fault,
        "arm": trial.arm, "seed": trial.seed, "limit": trial.examples, "found": proof.found,
        "holds": proof.holds, "caught_by": _commands(proof), "examples": proof.examples,
        "checked": proof.checked, "check_found": proof.check_found, "seconds": round(proof.seconds, 3),
        "trace": proof.trace, "detail": proof.detail,
    }  # fmt: skip


def _commands(proof: Proof) -> list[str]:
    """Return the commands that broke a rule."""
    return [*(["check"] if proof.check_found else []), *(["fuzz"] if proof.found else [])]


def _classes(mutants: Sequence[Proof]) -> Iterator[list[str]]:
    """Iterate over the rows of the table of classes, in the order of the alphabet."""
    for fault in sorted({proof.trial.fault for proof in mutants}):
        of_class = [proof for proof in mutants if proof.trial.fault == fault]
        checked = sum(bool(proof.check_found) for proof in of_class)
        found = [proof.examples for proof in of_class if proof.found]
        most = [f"{median(found):.0f}", str(max(found))] if found else ["-", "-"]
        yield [fault, *map(str, (len(of_class), checked, len(found))), *most]


def _examples(proof: Proof) -> int | None:
    return proof.examples if proof.found else None


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _wrong(proof: Proof) -> str:
    """Return the fault of a proof that does not hold."""
    if proof.holds or proof.failed:
        return proof.detail if proof.failed else ""
    rule = proof.trial.rule
    others = " ".join(sorted({*proof.found, *proof.check_found} - {rule}))
    shown = f"; {proof.trace}: {proof.detail}" if proof.trace else ""
    if rule is None:
        return f"FALSE ALARM {others}{shown}"
    if rule not in proof.found:
        missed = "NOT CAUGHT by fuzz" if rule in proof.check_found else "NOT CAUGHT"
        return f"{missed}, but broke {others}{shown}" if others else missed
    return f"broke {others} as well{shown}"
