"""What `selftest` shows: each mutant, the rule that caught it, and after how many examples."""

from deepstack_harness.reporting.terminal.output import Column, Output
from deepstack_harness.selftest.trials import Proof

_COLUMNS = (Column(32), Column(4), Column(11), Column(8, right=True), Column(7, right=True), Column(0))


class SelftestTable:
    """One row for each proof, in the order in which they come."""

    def __init__(self, output: Output) -> None:
        """Print the head."""
        self._output = output
        self._proofs: list[Proof] = []
        output.row(_COLUMNS, ["buffer", "rule", "arm", "examples", "seconds", "shrunk trace"], "bold")

    def show(self, proof: Proof) -> None:
        """One row; what went wrong comes after the trace."""
        self._proofs.append(proof)
        trial = proof.trial
        figures = [str(proof.examples), f"{proof.seconds:.1f}"]
        said = "; ".join(part for part in (proof.trace, _wrong(proof)) if part)
        cells = [trial.subject, trial.rule or "none", trial.arm, *figures, said]
        self._output.row(_COLUMNS, cells, "" if proof.holds else "red")
        self._output.record(record_of(proof))

    def close(self, seconds: float) -> bool:
        """The last line; answers whether everything holds."""
        mutants = [proof for proof in self._proofs if proof.trial.rule]
        controls = [proof for proof in self._proofs if not proof.trial.rule]
        missed = [proof.trial.subject for proof in mutants if not proof.holds]
        alarms = sum(not proof.holds for proof in controls)
        played = sum(proof.examples for proof in controls)
        said = f"{len(mutants) - len(missed)} of {len(mutants)} mutants caught, each by its rule alone; "
        said += f"{alarms} false alarms on reference in {played} examples; {seconds:.0f} s"
        said += f"; not so: {', '.join(missed)}" if missed else ""
        good = not missed and not alarms
        self._output.verdict(said, good=good)
        return good


def record_of(proof: Proof) -> dict[str, object]:
    """A proof as `--json` gives it, flat."""
    trial = proof.trial
    return {
        "schema_version": 1, "buffer": trial.subject, "rule": trial.rule, "arm": trial.arm,
        "seed": trial.seed, "limit": trial.examples, "found": proof.found, "holds": proof.holds,
        "examples": proof.examples, "seconds": round(proof.seconds, 3), "trace": proof.trace,
        "detail": proof.detail,
    }  # fmt: skip


def _wrong(proof: Proof) -> str:
    """What a proof that does not hold got wrong."""
    if proof.holds or proof.failed:
        return proof.detail if proof.failed else ""
    rule = proof.trial.rule
    others = " ".join(found for found in proof.found if found != rule)
    if rule is None:
        return f"FALSE ALARM {others}: {proof.detail}"
    if rule not in proof.found:
        return f"NOT CAUGHT, but broke {others}" if others else "NOT CAUGHT"
    return f"broke {others} as well"
