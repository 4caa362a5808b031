"""Observed cases: the argument of every oracle."""

from dataclasses import dataclass, field

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.oracles.contract_audit import ContractAudit


@dataclass(frozen=True)
class ObservedCase:
    """A case with the facts that were measured of it.

    `audit` is made once and shared by the oracles that need it.  Whoever judges a trace while it grows
    passes the audit of the steps before, so that each step is followed once.
    """

    case: Case
    observation: Observation
    audit: ContractAudit = field(default_factory=ContractAudit)

    def audited(self) -> ContractAudit:
        """Return the audit of the whole trace."""
        self.audit.follow(self.case, self.observation)
        return self.audit
