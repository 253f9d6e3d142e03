"""``CheckpointingMode``: how exact the state of a checkpoint is.

Side:   pure.
Source: PyFlink ``pyflink.datastream.checkpointing_mode``.
"""

from enum import Enum

__all__ = ["CheckpointingMode"]


class CheckpointingMode(Enum):
    """How often records count in the state after a restart.

    EXACTLY_ONCE: each record counts once; an input whose barrier has arrived waits for the others.
    AT_LEAST_ONCE: no input waits, and records that overtook a barrier count twice.
    """

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
