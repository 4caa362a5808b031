"""`python -m cases.specimens [NAME ..]`: run specimens without guards, or print each under each detector.

After all of them come counts: of each collection, wrong or right, what each detector found.
"""

import sys
from collections import Counter
from itertools import chain

from cases.specimens import buffers, kit, playing
from cases.specimens.collection import PROGRAMS
from deepstack_harness.play.steps_work import fresh_program


def print_all() -> None:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    programs = chain(PROGRAMS.values(), kit.regions(), kit.histories())
    played = chain(
        ((program, playing.findings(program)) for program in programs),
        ((program, buffers.findings(program)) for program in buffers.buffers()),
    )
    for specimen, findings in played:
        found = dict(findings)
        print(specimen.source, specimen.name, specimen.breaks or "right", found, flush=True)
        kind = "wrong" if specimen.breaks else "right"
        counts.update((specimen.source, kind, detector, word) for detector, word in found.items())
    for (source, kind, detector, word), number in sorted(counts.items()):
        print(f"{source}, {kind}: {detector}: {number} {word}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        each = PROGRAMS[name]
        playing.run_without_guards(fresh_program(each.program, each.warm_up))
    if not sys.argv[1:]:
        print_all()
