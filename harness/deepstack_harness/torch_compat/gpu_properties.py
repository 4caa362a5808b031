"""Properties of a GPU that Inductor and Triton ask for before they generate code for it.  No torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProperties:
    """Figures of one GPU, as `torch.cuda.get_device_properties` gives them on a real one.

    `capability` is (major, minor); memory in bytes, registers of 32 bits.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    l2_cache: int
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_multiprocessor: int
    registers_per_multiprocessor: int = 65536
    threads_per_multiprocessor: int = 2048
    threads_per_block: int = 1024
    warp_size: int = 32

    @property
    def architecture(self) -> int:
        """90 for capability (9, 0)."""
        major, minor = self.capability
        return 10 * major + minor
