"""Fuzzing the contract: hypothesis draws traces, the oracles judge every step, findings are shrunk traces.

Proof that every mutant is caught by its rule, and the reference by none.

Private: what is public is imported from `deepstack_harness` itself.
"""
