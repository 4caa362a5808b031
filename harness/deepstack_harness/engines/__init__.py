"""The engines that can be judged, one file each, and how a source of one is opened and bound.

A new engine is a file with a `KnownEngine`, and one line in `known.ENGINES`.
"""
