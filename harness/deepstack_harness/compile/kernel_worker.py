"""Prepare a worker process for a target, then measure subjects in it.

torch and Triton read environment variables when they are imported, so nothing here imports them before
these are set.
"""

import os
import tempfile

from deepstack_harness.compile.kernels import Measurement, Subject
from deepstack_harness.compile.torch_compat.targets import GPUS, naming_what_moved


def measure_subjects(subjects: list[Subject]) -> list[Measurement]:
    """Measure subjects, which have one target."""
    target, executes = subjects[0].target, subjects[0].execute
    with tempfile.TemporaryDirectory(prefix="deepstack-kernels-", ignore_cleanup_errors=True) as folder:
        # Caches of its own: Inductor does not generate code again that an earlier run left in a cache.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        if target in GPUS and not executes:  # an interpreted session prepares by itself
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            with naming_what_moved():
                from deepstack_harness.compile.torch_compat.fake_gpu import pretend

            pretend(GPUS[target])
        from deepstack_harness.compile.kernel_steps import measure_step

        return [measure_step(subject) for subject in subjects]
