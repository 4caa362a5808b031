"""Audits of the classes of a package source, and of the systems next to them.

Private: what is public is imported from `deepstack_harness` itself.
"""
