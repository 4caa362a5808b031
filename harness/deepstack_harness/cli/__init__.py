"""One file per command: `add_arguments` declares what it takes, `run` does it.

Importing a command must stay cheap; torch is imported inside `run` only.

Private: what is public is imported from `deepstack_harness` itself.
"""
