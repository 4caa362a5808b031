"""The contract of a buffer that is no deepstack buffer: the adapter says which method does what."""

from slots import SlotTable

ADAPTER = "get=read,set=write,clear=reset"


def test_the_table_keeps_the_contract(deepstack_contract):
    verdicts = deepstack_contract(SlotTable, adapter=ADAPTER, shape="(N,)", dtype="int64")
    assert {"R2", "R3", "R5"} <= set(verdicts.kept)
