"""A fact that stops to hold is reported by the name of its API, as changed or gone."""

from collections.abc import Callable

import pytest
import torch

from cases.torch_facts.facts import Since, fact

FIRST, NEVER = Since("1.0", "it was so from the start"), Since("99.0", "it comes one day")


def outcome(test: Callable[[], None]) -> str:
    try:
        test()
    except (pytest.fail.Exception, pytest.xfail.Exception) as error:
        return str(error)
    return "holds"


def name_is_there() -> None:
    torch.this_name_is_in_no_release  # type: ignore[attr-defined]  # noqa: B018


def nothing() -> None:
    pass


def test_what_changed_is_reported_with_the_name_the_sentence_and_who_rests_on_it() -> None:
    message = outcome(fact("torch.add", "models/decoder.py")(_false))
    assert f"torch {torch.__version__}".partition("+")[0] in message
    assert "torch.add changed. The fact was: false. Used by models/decoder.py." in message


def _false() -> None:
    assert 1 + 1 == 0


def test_a_name_that_is_missing_is_gone() -> None:
    assert "torch.x is gone" in outcome(fact("torch.x", "us")(name_is_there))


@pytest.mark.parametrize(
    ("test", "known", "expected"),
    [
        (nothing, {}, "holds"),
        (nothing, {"ended": NEVER}, "holds"),
        (nothing, {"began": FIRST}, "holds"),
        (_false, {"ended": FIRST}, "torch.x: known of torch 1.0: it was so from the start"),
        (_false, {"began": NEVER}, "torch.x: known of torch 99.0: it comes one day"),
        (nothing, {"ended": FIRST}, "torch.x does again what it did"),
        (nothing, {"began": NEVER}, "torch.x does again what it did"),
        (_false, {"ended": NEVER}, "torch.x changed"),
    ],
)
def test_a_known_change_is_expected_and_its_end_is_reported(
    test: Callable[[], None], known: dict[str, Since], expected: str
) -> None:
    assert expected in outcome(fact("torch.x", "us", **known)(test))
