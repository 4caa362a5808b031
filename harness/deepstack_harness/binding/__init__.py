"""Turn source text into a buffer: cut a model class out of a source, and put it behind `Buffer`.

The package is neither imported nor installed.  Two steps, in modules apart:

1. Cutting reads source text and syntax trees, and compiles: `syntax`, `name_usage`, `slice_init`,
   `extract`, `cut_class`, `cut_helpers`, `cut_model`, `discover`.  It executes nothing of the
   source, and imports no torch, so that it may be done before a process gives up its rights.
2. Binding executes what was cut, over stand-ins for what is missing, and makes instances: `define`,
   `stand_ins`, `bound_class`, `methods_class`, `forward_class` and the buffers.
"""
