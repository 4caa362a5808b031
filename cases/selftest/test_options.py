"""Options that the fields of a record declare."""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from deepstack_harness.cli.repro import ReproOptions
from deepstack_harness.compile.kernels import Subject
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzz.faults import FuzzRequest
from deepstack_harness.options import add_options, option, record_of
from deepstack_harness.runs.execution import RunRequest, Tier
from deepstack_harness.runs.night_stages import NightRequest, NightTier
from deepstack_harness.runs.records import Shard


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Wish:
    words: tuple[str, ...] = option("words", "words", nargs="*", default=())
    colour: Colour = option("a colour", metavar="C", default=Colour.RED)
    sizes: tuple[str, ...] = option("may be repeated", "--size", default=("small",))
    most_rows: int | None = option("rows", default=None)
    arm: ArmSpec | None = option("an arm", "-a", parse=ArmSpec.parse, default=None)
    loud: bool = option("say more", default=False)
    inner: int = 7


def parsed(words: Sequence[str], record: type[Any] = Wish, **others: object) -> Any:  # noqa: ANN401
    parser = ArgumentParser()
    add_options(parser, record)
    return record_of(record, parser.parse_args(words), **others)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("", {}),
        ("one two", {"words": ("one", "two")}),
        ("--colour blue", {"colour": Colour.BLUE}),
        ("--size large --size tiny --size large", {"sizes": ("large", "tiny")}),
        ("--most-rows 4", {"most_rows": 4}),
        ("-a eager/drop_all", {"arm": ArmSpec.parse("eager/drop_all")}),
        ("--loud", {"loud": True}),
    ],
)
def test_a_record_is_made_of_what_was_given(words: str, given: dict[str, Any]) -> None:
    assert parsed(words.split()) == replace(Wish(), **given)


def test_what_is_no_option_is_given_by_the_command() -> None:
    assert parsed(["--loud"], inner=8, colour=Colour.BLUE) == Wish(loud=True, inner=8, colour=Colour.BLUE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--colour", "rde"], "unknown --colour 'rde'.*red, blue"), (["-a", "nothing"], "nothing")],
)
def test_a_wrong_value_is_quoted(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parsed(words)


def test_options_are_added_in_the_order_of_the_names() -> None:
    parser = ArgumentParser()
    add_options(parser, Wish, "loud", "colour")
    usage = parser.format_usage()
    assert usage.index("--loud") < usage.index("--colour C")
    assert "--size" not in usage


NIGHT = {"folder": Path("new"), "history": Path("old"), "devices": ["cpu"], "workers": 2}
DEFAULTS: list[tuple[type[Any], dict[str, Any], object]] = [
    (RunRequest, {}, RunRequest()),
    (ReproOptions, {}, ReproOptions()),
    (FuzzRequest, {}, FuzzRequest()),
    (NightRequest, NIGHT, NightRequest(Path("new"), Path("old"), ["cpu"], 30.0, workers=2)),
    (Subject, {"profile_tokens": 8192}, Subject(profile_tokens=8192)),
]


@pytest.mark.parametrize(("record", "others", "default"), DEFAULTS)
def test_a_request_without_options_has_the_defaults(
    record: type[Any], others: dict[str, Any], default: object
) -> None:
    assert parsed([], record, **others) == default


@pytest.mark.parametrize(
    ("words", "others", "wanted"),
    [
        (
            "family=a --tier nightly --device cuda --device cuda --shard 2/3 -n 4",
            {},
            RunRequest(("family=a",), Tier.NIGHTLY, ("cuda",), workers=4, shard=Shard(2, 3)),
        ),
        ("--full --arm eager/stock", {}, ReproOptions(full=True, arm=ArmSpec.parse("eager/stock"))),
        ("--trace cap_4:_get_4", {}, ReproOptions(trace=Trace.parse("cap 4: get 4"))),
        ("--arm eager/drop_all", {}, FuzzRequest(arm="eager/drop_all")),
        (
            "--tier gpu --fuzz-minutes 5 --rehearse",
            NIGHT,
            NightRequest(Path("new"), Path("old"), ["cpu"], 5, workers=2, tier=NightTier.GPU, rehearse=True),
        ),
        (
            "--tokens 5 --target h200 --execute",
            {"profile_tokens": 6},
            Subject(tokens=5, profile_tokens=6, target="h200", execute=True),
        ),
    ],
)
def test_a_request_is_made_of_its_options(words: str, others: dict[str, Any], wanted: object) -> None:
    given = [word.replace("_", " ") if word.startswith("cap_") else word for word in words.split()]
    assert parsed(given, type(wanted), **others) == wanted


@pytest.mark.parametrize("record", [default[0] for default in DEFAULTS])
def test_a_flag_is_off_unless_it_is_given(record: type[Any]) -> None:
    assert all(field.default is False for field in fields(record) if field.type in (bool, "bool"))
