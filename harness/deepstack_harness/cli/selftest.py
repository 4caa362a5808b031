"""`selftest`: show that the harness finds the faults that are there, and only those.

One table has each buffer and the commands that caught it, another the same by class of fault, and two have
small compiled regions and the promises that they break.  All fit into 80 columns; the shrunk traces are in
the rows of `--json`.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.buffers import ALL_MUTANTS
from deepstack_harness.catalogue.pairs import AXES_OF_TRACES
from deepstack_harness.catalogue.regions import REGIONS
from deepstack_harness.cli.arguments import add_removed
from deepstack_harness.cli.output import progress
from deepstack_harness.contract.rules import Promise
from deepstack_harness.document.blocks import (
    BLANK,
    Column,
    Document,
    Heading,
    Line,
    TextTable,
    outcome,
    table_line,
)
from deepstack_harness.errors import ExitCode, unknown_name
from deepstack_harness.files import store_hypothesis_in_cache
from deepstack_harness.fuzz.trials import Proof
from deepstack_harness.text import number, plural

if TYPE_CHECKING:
    from deepstack_harness.fuzz.regions import RegionProof


def add_arguments(parser: ArgumentParser) -> None:
    """Add which mutants and regions are to be caught."""
    parser.add_argument(
        "mutants",
        nargs="*",
        metavar="MUTANT",
        help="names as in 'list mutants' and 'list regions' (default: all)",
    )
    add_removed(parser, "--seed", "draw other traces with 'fuzz --revision MUTANT --seed N'")
    add_removed(parser, "--workers", "there are two worker processes, and one on a machine with one core")


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when each mutant is caught only by its rule or promise, and nothing right is, else 1."""
    _check_names(args)
    store_hypothesis_in_cache()
    from deepstack_harness.fuzz.regions import prove_regions
    from deepstack_harness.fuzz.selftest import prove
    from deepstack_harness.fuzz.trials import trials_for

    good = True
    mutants = [name for name in args.mutants or ALL_MUTANTS if name in ALL_MUTANTS]
    if mutants:
        start, table = time.perf_counter(), SelftestTable()
        yield from table.head()
        trials = trials_for(mutants, _SEED, right=not args.mutants)
        with progress(f"0 of {len(trials)} hunts") as say:
            for number, proof in enumerate(prove(trials, _WORKERS), 1):
                yield from table.show(proof)
                say(f"{number} of {plural(len(trials), 'hunt')}")
        good = yield from table.close(time.perf_counter() - start)
    regions = [name for name in args.mutants or REGIONS if name in REGIONS]
    if regions:
        of_regions = RegionTable()
        yield BLANK
        yield Line(
            "small compiled regions: the promise that breaks under each of the arms, without another one"
        )
        with progress(f"0 of {plural(len(regions), 'region')}") as say:
            for number, of_region in enumerate(prove_regions(regions, _WORKERS), 1):
                yield from of_regions.show(of_region)
                say(f"{number} of {plural(len(regions), 'region')}")
        good &= yield from of_regions.close()
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _check_names(args: Namespace) -> None:
    for name in args.mutants:
        if name not in ALL_MUTANTS and name not in REGIONS:
            listed = f"the {len(ALL_MUTANTS)} of 'list mutants', the {len(REGIONS)} of 'list regions'"
            raise unknown_name("mutant", name, [*ALL_MUTANTS, *REGIONS], listed)


_COLUMNS = (
    Column("buffer", 31), Column("rule", 4), Column("class of fault", 16), Column("check", 5, right=True),
    Column("fuzz", 5, right=True), Column("seconds", 7, right=True),
)  # fmt: skip
_CLASS_COLUMNS = (
    Column("class of fault"),
    *(
        Column(head, right=True)
        for head in ("mutants", "by check", "by fuzz", "examples median", "examples most")
    ),
)
_AXIS_COLUMNS = (Column(), Column(right=True), Column())
_SEED = 0
"""Seed of the random traces: the same traces on every machine."""
_WORKERS = min(2, os.cpu_count() or 1)
"""Worker processes; 0 would play in this process."""


class SelftestTable:
    """One row for each proof, in the order in which they come; then one for each class of fault."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._proofs: list[Proof] = []

    def head(self) -> Document:
        """Yield the heads of the columns."""
        yield Line("check, fuzz: number of the trace or example that shows the fault first; - none")
        yield TextTable(_COLUMNS)

    def show(self, proof: Proof) -> Document:
        """Print one row; what is wrong with a proof that does not hold is below it."""
        self._proofs.append(proof)
        trial, style = proof.trial, "" if proof.holds else "red"
        figures = [
            number(proof.caught_by_check) or "-",
            number(proof.examples if proof.broken else None) or "-",
            f"{proof.seconds:.1f}",
        ]
        yield table_line(_COLUMNS, [trial.subject, trial.rule or "none", trial.fault, *figures], style)
        if wrong := _what_is_wrong(proof):
            yield Line(wrong, style, lead="    ")
        yield record_of(proof)

    def close(self, seconds: float) -> Document[bool]:
        """Print the classes of faults and the last lines; return whether everything holds."""
        mutants = [proof for proof in self._proofs if proof.trial.rule]
        right = [proof for proof in self._proofs if not proof.trial.rule]
        missed = [proof.trial.subject for proof in mutants if not proof.holds]
        refused = [f"{proof.trial.subject} [{proof.trial.arm}]" for proof in right if not proof.holds]
        yield BLANK
        yield TextTable(_CLASS_COLUMNS, [(cells, "") for cells in _classes(mutants)])
        yield from self._show_axes(mutants)
        yield BLANK
        played, checked = (sum(getattr(proof, key) for proof in right) for key in ("examples", "checked"))
        named = len({proof.trial.subject for proof in right})
        yield Line(
            f"{len(refused)} false alarms on {named} right buffers in {played} examples and {checked} traces"
        )
        good = not missed and not refused
        if not good:
            yield Line(f"not so: {', '.join([*missed, *refused])}", "red")
        caught = f"{len(mutants) - len(missed)} of {len(mutants)} mutants caught, each only by its own rule"
        yield outcome(f"{caught}; {seconds:.0f} s", good=good)
        return good

    def _show_axes(self, mutants: Sequence[Proof]) -> Document:
        """Print the mutants that only one axis of inputs finds, and the axes that find none so."""
        found = {
            axis: [proof.trial.subject for proof in mutants if axis in proof.axes] for axis in AXES_OF_TRACES
        }
        yield BLANK
        yield Heading("mutants that are found only where an axis of inputs is unusual")
        yield TextTable(_AXIS_COLUMNS, [
            ([axis, str(len(names)), ", ".join(names) or "none"], "" if names else "dim")
            for axis, names in found.items()
        ], head=False)  # fmt: skip


_REGION_COLUMNS = (Column(width=26), Column(width=5), Column())
_KINDS = tuple(dict.fromkeys(region.kind for region in REGIONS.values()))
_SHORT = {"cross_attention": "cross", "per_layer": "layers", "recurrent": "states"}
"""Kinds of modules whose names are too long for the head of a column."""
_PROMISE_COLUMNS = (Column("as stated"), *(Column(_SHORT.get(kind, kind), right=True) for kind in _KINDS))


class RegionTable:
    """One row for each region, below its kind of module; then one row for each promise."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._proofs: list[RegionProof] = []

    def show(self, proof: RegionProof) -> Document:
        """Print one row; what is wrong with a proof that does not hold is below it."""
        region, style = proof.region, "" if proof.holds else "red"
        if not self._proofs or self._proofs[-1].region.kind != region.kind:
            yield table_line(_REGION_COLUMNS, [region.kind, "of", "arms"], "bold")
        self._proofs.append(proof)
        cells = [proof.name, str(region.promise or "right"), " ".join(region.arms)]
        yield table_line(_REGION_COLUMNS, cells, style)
        if proof.wrong:
            yield Line(proof.wrong, style, lead="    ")
        yield {
                "schema_version": 1, "region": proof.name, "promise": region.promise, "kind": region.kind,
                "arms": list(region.arms), "found": {arm: list(rules) for arm, rules in proof.broken.items()},
                "holds": proof.holds, "chances": proof.chances, "seconds": round(proof.seconds, 3),
                "detail": proof.wrong or proof.detail,
            }  # fmt: skip

    def close(self) -> Document[bool]:
        """Print how many are as stated, by promise and kind, and the last lines; return whether all are."""
        yield BLANK
        yield TextTable(_PROMISE_COLUMNS, [
            ([name, *(self._cell(promise, kind) for kind in _KINDS)], "")
            for promise, name in [*((p, f"{p} {p.word}") for p in Promise), (None, "right")]
        ])  # fmt: skip
        wrong = [proof for proof in self._proofs if proof.region.promise]
        right = [proof for proof in self._proofs if not proof.region.promise]
        alarms = sum(not proof.holds for proof in right)
        yield Line(f"{alarms} false alarms on {plural(len(right), 'right region')}")
        caught = sum(proof.holds for proof in wrong)
        good = caught == len(wrong) and not alarms
        seconds = sum(proof.seconds for proof in self._proofs)
        yield outcome(
            f"{caught} of {len(wrong)} regions caught only by their promise; {seconds:.0f} processor seconds",
            good=good,
        )
        return good

    def _cell(self, promise: Promise | None, kind: str) -> str:
        of_cell = [
            proof for proof in self._proofs if (proof.region.promise, proof.region.kind) == (promise, kind)
        ]
        return f"{sum(proof.holds for proof in of_cell)} of {len(of_cell)}" if of_cell else "-"


def record_of(proof: Proof) -> dict[str, object]:
    """Return a proof as `--json` gives it, flat."""
    trial = proof.trial
    commands = [*(["check"] if proof.broken_by_check else []), *(["fuzz"] if proof.broken else [])]
    return {
        "schema_version": 1, "buffer": trial.subject, "rule": trial.rule, "fault": trial.fault,
        "arm": trial.arm, "seed": trial.seed, "limit": trial.examples, "found": proof.broken,
        "holds": proof.holds, "caught_by": commands, "examples": proof.examples,
        "checked": proof.checked, "check_found": proof.broken_by_check, "seconds": round(proof.seconds, 3),
        "trace": proof.trace, "detail": proof.detail, "axes": list(proof.axes),
    }  # fmt: skip


def _classes(mutants: Sequence[Proof]) -> Iterator[list[str]]:
    """Iterate over the rows of the table of classes, in the order of the alphabet."""
    for fault in sorted({proof.trial.fault for proof in mutants}):
        of_class = [proof for proof in mutants if proof.trial.fault == fault]
        checked = sum(bool(proof.broken_by_check) for proof in of_class)
        examples = [proof.examples for proof in of_class if proof.broken]
        most = [f"{median(examples):.0f}", str(max(examples))] if examples else ["-", "-"]
        yield [fault, *map(str, (len(of_class), checked, len(examples))), *most]


def _what_is_wrong(proof: Proof) -> str:
    """Return the fault of a proof that does not hold."""
    if proof.holds or proof.failed:
        return proof.detail if proof.failed else ""
    rule = proof.trial.rule
    others = " ".join(sorted({*proof.broken, *proof.broken_by_check} - {rule}))
    shown = f"; {proof.trace}: {proof.detail}" if proof.trace else ""
    if rule is None:
        return f"FALSE ALARM {others}{shown}"
    if rule not in proof.broken:
        missed = "NOT CAUGHT by fuzz" if rule in proof.broken_by_check else "NOT CAUGHT"
        return f"{missed}, but broke {others}{shown}" if others else missed
    return f"broke {others} as well{shown}"
