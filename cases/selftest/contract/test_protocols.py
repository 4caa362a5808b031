"""The contract as text: it has everything that the author of a buffer has to know."""

import pytest

from deepstack_harness.contract.protocols import contract_text, quoted, text_of_call
from deepstack_harness.contract.rules import Rule


@pytest.mark.parametrize(
    "part",
    [
        "(levels, N, hidden), N >= 0",
        "0 <= P <= capacity never raises",
        "exact zeros",
        "any strides",
        "any floating dtype",
        "changes nothing",
        "another get does not change them",
        "never traced with the model",
        "inference_mode",
        "while the generation stays",
        "the recorded clear(P) zeroes P rows",
        "must be called `payload`",
        "positions (3, n) int64",
        "promises\n    that its storage never moves",
        "as many rows were cleared as set",
        "Below N it raises and changes nothing, or retains all N rows",
    ],
)
def test_the_text_is_complete(part: str) -> None:
    assert part in contract_text()


@pytest.mark.parametrize(
    "rule",
    [
        Rule.STRUCTURE,
        Rule.BOUNDARY,
        Rule.FRESHNESS,
        Rule.CAPACITY,
        Rule.CLEAR,
        Rule.ADDRESS,
        Rule.PLACEMENT,
        Rule.REJECTION,
    ],
)
def test_a_rule_is_quoted_with_its_promise(rule: Rule) -> None:
    assert quoted(rule).startswith(f"{rule} {rule.word}: {rule.promise}")


def test_a_rule_names_the_calls_that_it_is_about() -> None:
    assert quoted(Rule.CLEAR).endswith("(see Buffer.clear)")
    assert "micro-batches" in text_of_call("clear")
