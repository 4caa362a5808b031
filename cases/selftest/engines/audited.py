"""The only class of a source, audited in a worker."""

from pathlib import Path

from deepstack_harness.audit.audited_source import located
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.audit.source_worker import AuditedClass, SourceWorker


def audited(source: Path | str) -> tuple[AuditedClass, ClassVerdicts]:
    """Return the only class of a source, and its verdicts with places."""
    with SourceWorker(str(source)) as worker:
        (found,) = worker.classes()
        assert found.ways.methods, found.ways.refusals
        return found, located(judge_class(found, worker), worker.source, found)
