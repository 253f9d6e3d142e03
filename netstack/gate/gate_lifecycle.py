"""The life of an input gate.

Side:   pure.
Source: Flink ``SingleInputGate``: ``setup``, ``requestPartitions``, ``close``.
"""

from enum import Enum, auto
from typing import Final


class GateLifecycle(Enum):
    """A gate only moves on.

    That every channel has ended is counted, and is no state: a gate may be closed before and after.
    """

    SET_UP = auto()
    """Channels are added."""
    REQUESTED = auto()
    """Channels have asked for their data and are polled; those with unknown producers are replaced."""
    CLOSED = auto()
    """Every channel is released."""


NEXT: Final = {
    GateLifecycle.SET_UP: frozenset({GateLifecycle.REQUESTED, GateLifecycle.CLOSED}),
    GateLifecycle.REQUESTED: frozenset({GateLifecycle.CLOSED}),
    GateLifecycle.CLOSED: frozenset[GateLifecycle](),
}
