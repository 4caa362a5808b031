"""All programs: what enters `PROGRAMS`, each module by being imported."""

from cases.specimens import blame, decoders, layers, programs, replays, unusual
from cases.specimens.kit import PROGRAMS

MODULES = (blame, decoders, layers, programs, replays, unusual)
__all__ = ["MODULES", "PROGRAMS"]
