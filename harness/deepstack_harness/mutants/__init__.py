"""`ReferenceBuffer` with one deliberate fault each, to prove that every rule's oracle catches its breach.

A mutant is a subclass that overrides as little as possible; the file is named after the rule that it
breaks.  `deepstack_harness.catalogue.mutants` lists them.
"""
