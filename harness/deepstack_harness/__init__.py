"""Find what `torch.compile` does to models that keep state in side buffers.

The package is read along the way of the data: a trace is played over a family
and a revision under an arm (`deepstack_harness.play`), the facts become an `Observation`,
oracles judge it rule by rule, and commands print the rows.  Importing this
package, or anything in its first rooms, never imports torch.
"""

__version__ = "0.1.0"
