"""The programs of incidents, in small and right; `repro ID --script` writes one of them down, with its fault.

A program is a class with `faults`, or a function, that takes no argument and returns a line for each wrong
step: none as it is here. An incident names its program, one line of it as `fix`, and the statement `fault`
that is in its place in the script. A script has the definitions that its program needs, without docstrings.
What is in here needs torch only. `LEVELS`, `HIDDEN`, `WIDTH`, `CAPACITY`, `STEPS` and `BACKEND` have the
values of the incident there.
"""
