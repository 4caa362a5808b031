"""Sources that have only the files of a test."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile


def source_of(files: Mapping[str, bytes]) -> Source:
    def read(member: str) -> SourceFile:
        if member not in files:
            raise NoSuchMember("the files of a test", member)
        return SourceFile(files[member].decode(), member)

    return cast(Source, SimpleNamespace(python_files=lambda: files, read=read))
