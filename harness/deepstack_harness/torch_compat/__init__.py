"""The only door to private torch APIs; `cases/selftest/test_torch_compat.py` holds each to its word."""
