"""Find a package and read its files: releases on an index, archives, source trees, installed packages.

No engine is known here: `locate` is given the packages that can be judged (`KnownPackage`).
Nothing of a source is executed, imported or unpacked.

Private: what is public is imported from `deepstack_harness` itself.
"""
