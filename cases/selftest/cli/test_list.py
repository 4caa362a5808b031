"""`list extensions`: a name of another package that cannot be used is told with the reason."""

from deepstack_harness.cli.list import _refused
from deepstack_harness.contract.names import Extension


def test_an_oracle_that_is_named_after_no_rule_is_refused_by_its_name() -> None:
    named = Extension("oracles", "speed", "other:speed", "other 1.0")
    assert _refused(named).startswith("oracle 'speed' of other 1.0 is not called RULE.NAME with a rule")
