"""Installed distributions made by hand: metadata with entry points, and the modules."""

from collections.abc import Mapping
from pathlib import Path

from deepstack_harness.catalogue.incidents import catalogue, incident_files
from deepstack_harness.contract.names import declared
from deepstack_harness.contract.oracles.judge import extra_oracles

EntryPoints = Mapping[str, Mapping[str, str]]


def declare(folder: Path, distribution: str, groups: EntryPoints) -> None:
    """Write the metadata of version 1.0 of a distribution that declares names in groups of the harness."""
    metadata = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = []
    for group, names in groups.items():
        lines += [f"[deepstack_harness.{group}]", *(f"{name} = {value}" for name, value in names.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def forget() -> None:
    """Forget what was read from installed distributions."""
    for cached in (declared, incident_files, catalogue, extra_oracles):
        cached.cache_clear()
