"""Kernels that a decoder compiles to, and their sizes, measured in a child process."""
