"""Small compiled regions with side inputs, right and wrong, to prove that each promise I1..I5 is judged.

A file holds one kind of module: a right one, written as engines write it, and a table of mutants of it
(`program.changed`). A mutant has one fault, in its code or in how its caller uses it, and states the promise
that breaks under its `arms`. It is a class where its fault needs more than an expression.
`unusual` has right modules that are written in rare ways. `deepstack_harness.catalogue.regions` reads them
all.
"""
