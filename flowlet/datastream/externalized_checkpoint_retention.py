"""``ExternalizedCheckpointRetention``: what becomes of checkpoints when their job ends.

Side:   pure.
Source: PyFlink ``pyflink.datastream.externalized_checkpoint_retention``.
"""

from enum import Enum

__all__ = ["ExternalizedCheckpointRetention"]


class ExternalizedCheckpointRetention(Enum):
    """Whether the newest checkpoints outlive their job; those of a job that finishes never do.

    DELETE_ON_CANCELLATION: they stay when it fails.  RETAIN_ON_CANCELLATION: when it is cancelled, too.
    NO_EXTERNALIZED_CHECKPOINTS: never.
    """

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2
