"""Which kernels a decoder compiles to, and how large they are, measured in a child process."""
