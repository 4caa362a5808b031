"""Two neighbours of the buffer in the same engine: placeholder ranges (R12), dual-stream projection (R13).

`variants.py` names what there is, `facts.py`, `range_facts.py` and `ordering_facts.py` are what is measured;
none of these knows torch.
"""
