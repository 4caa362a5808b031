"""Buffer semantics, one short file each; every file says which vLLM change it follows."""
