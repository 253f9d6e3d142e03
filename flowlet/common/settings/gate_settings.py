"""``GateSettings``: what the writes into a job's remote gates can rely on.

Side:   pure.
Source: ours.
"""

from enum import Enum

from netstack.late import dataclass


class Acknowledge(Enum):
    """When a write returns; by the values of ``flowlet.gate.acknowledge``."""

    CHECKPOINTED = "checkpointed"
    """A complete checkpoint holds its rows: no failure loses them."""
    PROCESSED = "processed"
    """All tasks have processed its rows: a failure before the next checkpoint loses them."""


class RetryRule(Enum):
    """What several attempts of a partition have in common; by the values of ``flowlet.gate.retries``."""

    SAME_ROWS = "same-rows"
    """The same rows in the same order: those that are in are skipped, so each is in once."""
    ANY_ROWS = "any-rows"
    """Nothing, but for the continued calls of one attempt: another attempt is taken from its beginning, and some rows
    are in twice.
    """


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What ``flowlet.gate.*`` decides.

    Args:
        acknowledge: when a write returns; without checkpoints always as soon as its rows are processed.
        retries: which attempts of a partition have the same rows.
    """

    acknowledge: Acknowledge = Acknowledge.CHECKPOINTED
    retries: RetryRule = RetryRule.SAME_ROWS
