"""The contract of a buffer that is no deepstack buffer: an adapter class says which method does what."""

from slots import Adapter


def test_the_table_keeps_the_contract(deepstack_contract):
    verdicts = deepstack_contract(Adapter)
    assert {"R2", "R3", "R5"} <= set(verdicts.kept)
