"""Judge the deepstack buffers of real engines, from source text that is neither imported nor installed.

A new engine is a file in `kinds` with a `KnownEngine`, and one line in `known.ENGINES`.

1. Cutting reads source text and syntax trees, and compiles: `syntax`, `extract`, `cut_class`, `cut_model`,
   `carriers`, `text_model`, `discover`.  Cutting executes nothing of the source and needs no torch, so that
   it may be done before a process gives up its rights.
2. Binding executes the cut code over `stand_ins` for what is missing, and puts it behind the `Buffer`
   interface: `bound_class` and `text_decoder` for a model class, `bind` for all that was cut of a source,
   `classes` for the choice of each engine.

`live` starts an installed engine instead, and compares its answers.

Private: what is public is imported from `deepstack_harness` itself.
"""
