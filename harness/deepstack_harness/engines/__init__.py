"""Judge the deepstack buffers of real engines, from a source that need not be installed.

A new engine is a file in `kinds` with a `KnownEngine`, and one line in `known.ENGINES`.

1. Finding reads source text and syntax trees: `syntax`, `carriers`, `text_model`, `discover`.  Nothing of the
   source runs, and no torch is needed, so that it may be done before a process gives up its rights.
2. Loading imports the package of the source in a sandboxed worker, over `stubs` for what is missing: `load`.
   `loaded_class` furnishes a class that Python has made, `argument_parts` an engine whose payload is an
   argument, and `rebinding` finds what may change a class later.
3. Binding gives classes the `Buffer` interface, over `stand_ins`: `bound_class` and `text_decoder` for
   a model class, `bind` for other engines, `classes` for the choice of each engine.

`live` starts an installed engine instead, and compares its outputs.

Private: what is public is imported from `deepstack_harness` itself.
"""
