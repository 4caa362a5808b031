"""The machine: versions, devices, compilers."""
