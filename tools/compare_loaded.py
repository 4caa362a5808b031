"""`python -m tools.compare_loaded SOURCE [CLASS ..]`: judge each class cut, and made by importing it.

Prints a line for each class, and below it every row that differs. Exits with 1 where one does: then the
import cannot replace the cut, or the cut is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from typing_extensions import override

from deepstack_harness.audit.classes import judge_class
from deepstack_harness.audit.source_worker import AuditedClass, SourceWorker
from deepstack_harness.contract.verdicts import Row
from deepstack_harness.engines.discover import DeepstackCut
from deepstack_harness.errors import Reason
from deepstack_harness.play.case_worker import ClassWays

_Rows = Mapping[tuple[str, str], tuple[str, str, str]]


class LoadsAll(SourceWorker):
    """A worker that makes every class by importing its package."""

    @override
    def _define(self, cut: DeepstackCut, reading_s: float) -> AuditedClass:
        return self._define_loaded(AuditedClass(cut, ClassWays(refusals=(Reason("not cut"),))))


def rows_of(audited: AuditedClass, worker: SourceWorker) -> _Rows:
    """Return verdict, shape and reach of each rule and regime; nothing of a class that was refused."""
    rows: Sequence[Row] = judge_class(audited, worker).rows if audited.can_be_judged else ()
    if worker.stubs_met(audited):
        return {}
    return {
        (str(row.rule), str(row.regime)): (str(row.verdict), str(row.shape), str(row.reach)) for row in rows
    }


def compare(text: str, names: Sequence[str]) -> int:
    """Print how the classes of a source compare; return how many differ."""
    different = 0
    with SourceWorker(text) as cuts, LoadsAll(text) as loads:
        found = [worker.classes(lambda name, _: not names or name in names) for worker in (cuts, loads)]
        for cut, loaded in zip(*found, strict=True):
            old, new = rows_of(cut, cuts), rows_of(loaded, loads)
            differ = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
            different += bool(differ)
            print(f"{cut.model_class}: {len(old)} rows cut, {len(new)} loaded, {len(differ)} differ")
            for key in differ:
                print(f"    {' '.join(key)}: {old.get(key)} cut, {new.get(key)} loaded")
            for label, audited in (("cut", cut), ("loaded", loaded)):
                for why in audited.ways.refusals if differ or not audited.can_be_judged else ():
                    print(f"    {label}: {why}")
            print(f"    {loaded.ways.loaded}", flush=True)
    return different


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; return 1 where a class differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source")
    parser.add_argument("classes", nargs="*")
    given = parser.parse_args(arguments)
    return int(compare(given.source, given.classes) > 0)


if __name__ == "__main__":
    sys.exit(main())
