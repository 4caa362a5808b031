"""Right buffers of many designs, written from the contract's text and not from `ReferenceBuffer`.

Each keeps every rule in the regimes that its `regimes` names, `live` or `both`: a harness that refuses one of
them is wrong.  `deepstack_harness.catalogue.correct` lists them.
"""
