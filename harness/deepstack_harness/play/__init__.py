"""Play a trace over a decoder and a buffer under an arm, and observe every step.

Beside the lane under test runs a reference lane: a buffer of the same revision and
the same decoder, uncompiled and driven by a correct engine, given the same payloads.
Its outputs are what the others are compared with.
"""
