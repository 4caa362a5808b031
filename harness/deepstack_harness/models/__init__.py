"""Tiny decoders of real model families, buffers with the semantics of releases, and engines that call them.

A family is one file of a decoder; `reference` has the buffer that passes every rule, `revisions` the buffers
as they were released. `correct` has right buffers of many designs, `mutants` faulty ones. `engine` calls a
buffer and a decoder correctly, `engine_faults` and `engine_layouts` in other ways.

Private: what is public is imported from `deepstack_harness` itself.
"""
