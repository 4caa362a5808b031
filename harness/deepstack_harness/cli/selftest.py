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
    for name in args.mutants:
        if name not in ALL_MUTANTS and name not in REGIONS:
            listed = f"the {len(ALL_MUTANTS)} of 'list mutants', the {len(REGIONS)} of 'list regions'"
            raise unknown_name("mutant", name, [*ALL_MUTANTS, *REGIONS], listed)
    store_hypothesis_in_cache()
    good = True
    if mutants := [name for name in args.mutants or ALL_MUTANTS if name in ALL_MUTANTS]:
        good = yield from _prove_mutants(mutants, right=not args.mutants)
    if regions := [name for name in args.mutants or REGIONS if name in REGIONS]:
        yield BLANK
        good &= yield from _prove_regions(regions)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


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


def _prove_mutants(mutants: Sequence[str], *, right: bool) -> Document[bool]:
    """Print a row for each proof as it comes, and what is wrong with one that does not hold below it."""
    from deepstack_harness.fuzz.selftest import prove
    from deepstack_harness.fuzz.trials import trials_for

    start = time.perf_counter()
    yield Line("check, fuzz: number of the trace or example that shows the fault first; - none")
    yield TextTable(_COLUMNS)
    trials, proofs = trials_for(mutants, _SEED, right=right), list[Proof]()
    with progress(f"0 of {len(trials)} hunts") as say:
        for proof in prove(trials, _WORKERS):
            proofs.append(proof)
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
            say(f"{len(proofs)} of {plural(len(trials), 'hunt')}")
    return (yield from _sum_up(proofs, time.perf_counter() - start))


def _sum_up(proofs: Sequence[Proof], seconds: float) -> Document[bool]:
    """Print the classes of faults, the axes of inputs that find mutants, and the last lines.

    Returns whether every proof holds.
    """
    mutants = [proof for proof in proofs if proof.trial.rule]
    right = [proof for proof in proofs if not proof.trial.rule]
    missed = [proof.trial.subject for proof in mutants if not proof.holds]
    refused = [f"{proof.trial.subject} [{proof.trial.arm}]" for proof in right if not proof.holds]
    yield BLANK
    yield TextTable(_CLASS_COLUMNS, [(cells, "") for cells in _classes(mutants)])
    by_axis = {
        axis: [proof.trial.subject for proof in mutants if axis in proof.axes] for axis in AXES_OF_TRACES
    }
    yield BLANK
    yield Heading("mutants that are found only where an axis of inputs is unusual")
    yield TextTable(_AXIS_COLUMNS, [
        ([axis, str(len(names)), ", ".join(names) or "none"], "" if names else "dim")
        for axis, names in by_axis.items()
    ], head=False)  # fmt: skip
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


_REGION_COLUMNS = (Column(width=26), Column(width=5), Column())
_KINDS = tuple(dict.fromkeys(region.kind for region in REGIONS.values()))
_SHORT = {"cross_attention": "cross", "per_layer": "layers", "recurrent": "states"}
"""Kinds of modules whose names are too long for the head of a column."""
_PROMISE_COLUMNS = (Column("as stated"), *(Column(_SHORT.get(kind, kind), right=True) for kind in _KINDS))


def _prove_regions(names: Sequence[str]) -> Document[bool]:
    """Print a row for each region, below its kind of module, and how many are as stated.

    Returns whether all are.
    """
    from deepstack_harness.fuzz.regions import prove_regions

    yield Line("small compiled regions: the promise that breaks under each of the arms, without another one")
    proofs: list[RegionProof] = []
    with progress(f"0 of {plural(len(names), 'region')}") as say:
        for proof in prove_regions(names, _WORKERS):
            region, style = proof.region, "" if proof.holds else "red"
            if not proofs or proofs[-1].region.kind != region.kind:
                yield table_line(_REGION_COLUMNS, [region.kind, "of", "arms"], "bold")
            proofs.append(proof)
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
            say(f"{len(proofs)} of {plural(len(names), 'region')}")
    yield BLANK
    lines = []
    for promise in (*Promise, None):
        lines.append([f"{promise} {promise.word}" if promise else "right"])
        for kind in _KINDS:
            held = [
                proof.holds
                for proof in proofs
                if (proof.region.promise, proof.region.kind) == (promise, kind)
            ]
            lines[-1].append(f"{sum(held)} of {len(held)}" if held else "-")
    yield TextTable(_PROMISE_COLUMNS, [(cells, "") for cells in lines])
    caught = [proof.holds for proof in proofs if proof.region.promise]
    right = [proof.holds for proof in proofs if not proof.region.promise]
    yield Line(f"{right.count(False)} false alarms on {plural(len(right), 'right region')}")
    good = all(caught) and all(right)
    seconds = sum(proof.seconds for proof in proofs)
    of_all = f"{sum(caught)} of {len(caught)} regions caught only by their promise"
    yield outcome(f"{of_all}; {seconds:.0f} processor seconds", good=good)
    return good


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
