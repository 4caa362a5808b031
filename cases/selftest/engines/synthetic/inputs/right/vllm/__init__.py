raise RuntimeError("vLLM was imported")
