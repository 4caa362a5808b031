"""The buffer of a real vLLM: locate a source, cut the buffer out of it, bind it to `Buffer`.

vLLM is neither imported nor installed; `locate` and `bind` are the two doors.
"""
