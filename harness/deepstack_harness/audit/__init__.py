"""Audits of the classes of a package source, and of the systems beside them.

Private: what is public is imported from `deepstack_harness` itself.
"""
