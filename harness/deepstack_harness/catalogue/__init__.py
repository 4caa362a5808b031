"""Known faults, expected failures, names of what can be run, and the cases and programs that follow.

No torch. Requests as users send them, and the schedule that turns them into traces, are here too.

Private: what is public is imported from `deepstack_harness` itself.
"""
