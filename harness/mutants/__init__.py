"""`ReferenceBuffer` with one deliberate fault each, to prove that every rule is caught by its oracle.

A mutant is a subclass that overrides as little as possible.  Which rule it breaks
stands in `harness.registry.MUTANTS`.
"""
