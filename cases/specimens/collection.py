"""All programs: what enters `PROGRAMS`, each module by being imported."""

from cases.specimens import blame, decoders, layers, programs, replays
from cases.specimens.kit import PROGRAMS

MODULES = (blame, decoders, layers, programs, replays)
__all__ = ["MODULES", "PROGRAMS"]
