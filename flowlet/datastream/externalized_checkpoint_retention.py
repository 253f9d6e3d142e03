"""``ExternalizedCheckpointRetention``: whether checkpoints stay when their job ends.

Side:   pure.
Source: PyFlink ``pyflink.datastream.externalized_checkpoint_retention``.
"""

from enum import Enum

__all__ = ["ExternalizedCheckpointRetention"]


class ExternalizedCheckpointRetention(Enum):
    """Whether the newest checkpoints outlive their job; they never outlive a job that finishes.

    DELETE_ON_CANCELLATION: they stay when the job fails.
    RETAIN_ON_CANCELLATION: they stay when the job fails or is cancelled.
    NO_EXTERNALIZED_CHECKPOINTS: they never stay.
    """

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2
