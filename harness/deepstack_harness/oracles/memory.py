"""R14: no kernel touches memory outside its tensors, and nothing that was never written is put out."""

from deepstack_harness.contract.facts.accesses import AccessFacts
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, error


def judge(facts: AccessFacts) -> Judgement:
    """Count bytes outside of tensors; without any, rows < n that depend on memory nobody wrote.

    Reading unwritten bytes alone is allowed: kernels mask the lanes behind the last row.
    """
    if not facts.accesses:
        return error(Rule.R14, "no access of any kernel was measured")
    wild = [access for access in facts.accesses if access.outside]
    if wild:
        worst = max(wild, key=lambda access: access.outside)
        said = (
            f"kernel {worst.kernel} touched bytes [{worst.first}, {worst.end}) of {worst.tensor}, "
            f"which has {worst.size}"
        )
        return against(Rule.R14, sum(access.outside for access in wild), 0, "bytes", said)
    kernels = {access.kernel for access in facts.accesses}
    said = f"{len(facts.accesses)} accesses of {plural(len(kernels), 'kernel')} were inside their tensors"
    if facts.unwritten_rows:
        read = sum(access.unwritten for access in facts.accesses)
        said = f"{facts.unwritten_rows} rows depend on {read} bytes that nothing had written"
    return against(Rule.R14, facts.unwritten_rows, 0, "rows", said)
