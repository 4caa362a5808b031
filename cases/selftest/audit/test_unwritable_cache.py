"""A release whose files cannot be cached is read by this process alone: its worker has no network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import deepstack_harness
from cases.selftest.engines.synthetic_vllm import HANDS_ON, INNER_MODEL, ModelFile, Vllm
from cases.selftest.sources.served_index import serving
from deepstack_harness.files import CACHE_VARIABLE

ROOT = Path(deepstack_harness.__file__).parents[2]
AUDITS = """\
import sys
from deepstack_harness.audit.source_worker import SourceWorker
with SourceWorker("vllm==0.22.1") as source:
    print([(one.model_class, one.ways.methods, one.ended) for one in source.classes()])
    made = source.in_force
    print(sorted(part for part in made.in_force if "no sockets" in part) or made.missing)
"""


def test_a_worker_reads_what_this_process_has_read(tmp_path: Path) -> None:
    """In a process of its own: the private folder goes when it ends."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    (tmp_path / "temporary").mkdir()
    kept = {name: text for name, text in os.environ.items() if not name.upper().endswith("_PROXY")}
    with serving(tmp_path / "served") as served:
        Vllm("0.22.1", str(ModelFile(more=HANDS_ON)) + INNER_MODEL).wheel(served.folder)
        done = subprocess.run(
            [sys.executable, "-c", AUDITS], cwd=ROOT, capture_output=True, text=True, check=False,
            env={**kept, CACHE_VARIABLE: str(tmp_path / "cache"), "PIP_INDEX_URL": served.url,
                 "PIP_CONFIG_FILE": os.devnull, "TMPDIR": str(tmp_path / "temporary")},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    classes, sandbox = done.stdout.splitlines()
    assert "('Qwen3VLForConditionalGeneration', True, None)" in classes
    if "restricted system calls" in sandbox:
        pytest.skip(sandbox)
    assert "no sockets" in sandbox
    assert list((tmp_path / "temporary").iterdir()) == []
