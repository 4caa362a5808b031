"""The only door to private torch APIs; `cases/selftest/compile/torch_compat/` tests each of them."""
