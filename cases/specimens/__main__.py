"""`python -m cases.specimens [NAME ..]`: run specimens without guards, or print each under each detector."""

import sys
from itertools import chain

from cases.specimens import buffers, kit, playing
from cases.specimens.collection import PROGRAMS
from deepstack_harness.play.steps_work import fresh_program

if __name__ == "__main__":
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            each = PROGRAMS[name]
            playing.run_without_guards(fresh_program(each.program, each.warm_up))
        sys.exit()
    for each in chain(PROGRAMS.values(), kit.regions(), kit.histories()):
        print(each.source, each.name, each.breaks or "right", dict(playing.findings(each)), flush=True)
    for each in buffers.buffers():
        print(each.source, each.name, each.breaks or "right", dict(buffers.findings(each)), flush=True)
