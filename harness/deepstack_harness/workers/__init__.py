"""Child processes: one class that starts, watches, limits and ends them, and one format of messages.

`child` is the half that runs in the child; `supervised` starts it and ends it with all that it started;
`worker` calls functions in it, `command` runs a command line; `outcomes` are the ways that either can end.
"""
