"""`ReferenceBuffer` with one deliberate fault each, to prove that every rule's oracle catches its breach.

A mutant overrides as little as possible, most often one hook of `hooks.FaultyBuffer`; its file is named after
the rule that it breaks. In each file the mutants with `shown_by = "inputs"` come last: their fault
shows only on unusual payloads and histories (`deepstack_harness.catalogue.traces`).
`deepstack_harness.catalogue.buffers` reads them all.
"""
