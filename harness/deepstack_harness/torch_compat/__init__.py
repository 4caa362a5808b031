"""The only door to private torch APIs; `cases/selftest/torch_compat/` tests each of them."""
