"""GPUs that code is generated for without having them.  No torch.

Only those whose generated kernels were compared with a real one belong here
without a word; the H200's comparison is a case marked `gpu`.
"""

from collections.abc import Mapping

from deepstack_harness.torch_compat.gpu_properties import GpuProperties

H200 = GpuProperties(
    name="NVIDIA H200",
    capability=(9, 0),
    multiprocessors=132,
    memory=141 * 2**30,
    l2_cache=60 * 2**20,
    shared_per_block=48 * 2**10,
    shared_per_block_optin=227 * 2**10,
    shared_per_multiprocessor=228 * 2**10,
)
"""NVIDIA's data sheet and the CUDA C++ Programming Guide's table for compute capability 9.0."""

GPUS: Mapping[str, GpuProperties] = {"h200": H200}
