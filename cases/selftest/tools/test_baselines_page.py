"""The page of baselines is that of the files, and states why each fact moved."""

import pytest
from msgspec import structs

from cases.baselines import SCHEMA_VERSION, BaselineRow, Baselines
from deepstack_harness.errors import UsageError
from tools import baselines_page as tool

SUBJECT: dict[str, str | int | None] = {
    "family": "qwen3_vl", "revision": "pr43617", "arm": "inductor/drop_all/no_size_asserts",
    "dtype": "bfloat16", "tokens": 77, "capacity": 8192, "profile_tokens": 8192, "layers": 3,
}  # fmt: skip
BYTES: dict[str, int | float | str] = {"2.13": 2000, "2.14": 1000, "2.15": 1000, "2.15 on NVIDIA H200": 1024}
FACTS: dict[str, int | float | str] = {"graphs": 1, "kernels": 7, "points": 9, "largest": "n"}
ROW = BaselineRow(
    SUBJECT, {**{name: dict.fromkeys(BYTES, value) for name, value in FACTS.items()}, "bytes": BYTES}
)
FILES = {"h200": Baselines(SCHEMA_VERSION, {torch: f"torch {torch}" for torch in BYTES}, (ROW,))}
REASON = tool.Reason("2.14", ("h200",), ("qwen3_vl",), ("bytes",), "Because it is.")


@pytest.mark.skipif(not tool.PAGE.exists(), reason="needs a checkout")
def test_the_page_is_that_of_the_files() -> None:
    assert tool.PAGE.read_text() == tool.written(), "run: python -m tools.baselines_page"


def test_a_fact_that_moved_has_an_arrow_its_torch_and_its_reason() -> None:
    text = tool.page(FILES, [REASON])
    assert "| 1 | 7 | 9 | 2,000 → **1,000** (2.14) but **1,024** (2.15 on NVIDIA H200) |" in text
    assert "- **torch 2.14**: bytes of qwen3_vl (h200), -50.0 %. Because it is." in text


def test_a_move_without_a_reason_is_refused() -> None:
    said = r"h200, torch 2.14: bytes 2000 -> 1000 of .*qwen3_vl.* has no reason in fixtures/baselines/expl"
    with pytest.raises(UsageError, match=said):
        tool.page(FILES, [])
    with pytest.raises(UsageError, match=said):  # of another target
        tool.page(FILES, [structs.replace(REASON, targets=("cpu",))])


def test_a_reason_for_what_did_not_move_is_refused() -> None:
    with pytest.raises(UsageError, match=r"nothing moved as in Reason\(torch='2.15'"):
        tool.page(FILES, [REASON, structs.replace(REASON, torch="2.15")])
