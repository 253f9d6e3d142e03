"""``ExternalizedCheckpointRetention``: what becomes of checkpoints when their job ends.

Side:   pure.
Source: PyFlink ``pyflink.datastream.externalized_checkpoint_retention``.
"""

from enum import Enum

__all__ = ["ExternalizedCheckpointRetention"]


class ExternalizedCheckpointRetention(Enum):
    """Whether checkpoints outlive their job; so far only NO_EXTERNALIZED_CHECKPOINTS can be set."""

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2
