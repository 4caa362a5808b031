"""What a worker sends becomes a record, in whatever thread."""

import subprocess
import sys

import msgspec
import pytest

from deepstack_harness.workers.remote import converted

# Sixty record types that no thread has seen, each met by four threads at once.
AT_ONCE = """
import gc, sys, threading
from dataclasses import make_dataclass
from deepstack_harness.workers.remote import converted

sys.setswitchinterval(1e-6)
value = {f"x{i}": {f"a{j}": 1 for j in range(10)} for i in range(10)}
results = []
for _ in range(60):
    parts = [make_dataclass(f"Part{i}", [(f"a{j}", int) for j in range(10)]) for i in range(10)]
    kind = make_dataclass("Whole", [(f"x{i}", part) for i, part in enumerate(parts)])
    together = threading.Barrier(4)

    def convert():
        together.wait()
        results.append(converted(value, kind).x9.a9)
        gc.collect()

    threads = [threading.Thread(target=convert) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(sum(results))
"""


def test_threads_that_meet_a_record_type_at_once_convert_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "240\n"), ran.stderr


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        converted("eleven", int)
