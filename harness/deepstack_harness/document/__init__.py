"""What a command yields, and how it is shown.

A command is a generator of rows and blocks. Rows are for programs: `--json` writes them. Blocks are for
people: `terminal` renders them, and `markdown` escapes what GitHub renders. `shown` turns a row into
words.

Private: what is public is imported from `deepstack_harness` itself.
"""
