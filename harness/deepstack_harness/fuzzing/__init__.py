"""Fuzzing the contract: hypothesis draws traces, the oracles judge every step, findings are shrunk traces."""
