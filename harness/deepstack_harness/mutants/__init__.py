"""`ReferenceBuffer` with one deliberate fault each, to prove that every rule is caught by its oracle.

A mutant is a subclass that overrides as little as possible.  Which rule it breaks
stands in `deepstack_harness.catalogue.registry.MUTANTS`, and in `MUTANT_ARMS` how it must be run to show it.
Most leave a call that has to grow as it is: rows that go wrong there break R4 instead.
"""

import ast
from importlib.util import find_spec
from pathlib import Path


def summary_of(mutant: str) -> str:
    """The first line of a mutant's file, read without importing it, which would cost torch.

    Raises `ModuleNotFoundError` where there is no such file.
    """
    spec = find_spec(f"{__name__}.{mutant}")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no mutant '{mutant}' in {__name__}")
    said = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (said or "").partition("\n")[0]
