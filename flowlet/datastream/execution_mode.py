"""``RuntimeExecutionMode``: whether results are running or final.

Side:   pure.
Source: PyFlink ``pyflink.datastream.execution_mode``.
"""

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """Whether keyed aggregations emit running results or final ones.

    STREAMING: a running result for every record.
    BATCH: one result per key, at the end of the input, which must be bounded.
    AUTOMATIC: BATCH if all sources are bounded, else STREAMING.

    In BATCH mode keyed inputs are sorted by key, results between tasks are files, and stages run one after the other:
    docs/batch.md.
    """

    STREAMING = "STREAMING"
    BATCH = "BATCH"
    AUTOMATIC = "AUTOMATIC"
