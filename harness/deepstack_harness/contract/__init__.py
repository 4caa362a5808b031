"""The contract between engines and buffers: rules, traces, cases, facts, rows, interfaces; no torch.

Private: what is public is imported from `deepstack_harness` itself.
"""
