"""The glossary has each word of a column or an option that is no plain English and no word of PyTorch."""

import argparse
import re
from dataclasses import fields
from pathlib import Path

from deepstack_harness.cli.main import COMMANDS, build_parser
from deepstack_harness.contract.verdicts import Row

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").partition(":sorted:")[2]
_PLAIN = """
a against all annotation backend bisect by call change cheapest clas code compare configuration construct
cost cubin detail device dry dtype example exception execute executor expected fail first full fuzz help
hidden history html id json junit keep kind later layer limit line list markdown member memory method
minute mode model new no node old on out package program progres pytest quiet read record release restore
resume sarif schema script search second seed seen since static test thorough threshold token torch unit
until upstream value version vllm where why word write writer
"""
PLAIN = set(_PLAIN.split())
"""Words in the singular that mean here what they mean anywhere."""


def words_of(name: str) -> set[str]:
    return {word.removesuffix("s") for word in re.split(r"[-_ ]", name.lower()) if word}


def explained() -> set[str]:
    return set().union(*map(words_of, re.findall(r"^\w.*$", PAGE, re.MULTILINE)), {"rehearse"})


def used() -> set[str]:
    """Return the words of all columns, those of inputs and findings included, and of all options."""
    page = (ROOT / "docs" / "reference" / "rows.md").read_text(encoding="utf-8")
    names = {field.name for field in fields(Row)}
    names |= {
        name for row in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE) for name in row.split("`")[1::2]
    }
    for command in COMMANDS:
        (commands,) = [
            action
            for action in build_parser([command])._actions
            if isinstance(action, argparse._SubParsersAction)
        ]
        for action in commands.choices[command]._actions:
            names.add(action.option_strings[-1] if action.option_strings else action.dest)
    return set().union(*map(words_of, names))


def test_each_word_of_a_column_or_an_option_is_explained() -> None:
    words = used()
    assert {"shape", "standing", "rehearse", "chance"} <= words
    assert sorted(words - PLAIN - explained()) == []


def test_a_plain_word_is_in_use_and_is_not_explained() -> None:
    assert sorted(PLAIN - used()) == []
    assert sorted(PLAIN & explained()) == []


def test_each_term_in_a_link_of_the_glossary_is_in_it() -> None:
    terms = set(re.findall(r"^\w.*$", PAGE, re.MULTILINE))
    linked = {link.partition(" <")[2].rstrip(">") or link for link in re.findall(r"\{term\}`([^`]+)`", PAGE)}
    assert sorted(linked - terms) == []
