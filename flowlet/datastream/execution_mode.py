"""``RuntimeExecutionMode``: whether results are final or running.

Side:   pure.
Source: PyFlink ``pyflink.datastream.execution_mode``.
"""

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """How keyed aggregations report.

    STREAMING: every record brings a new running result.  BATCH: one result per key, at the end of the input, which must be bounded.
    AUTOMATIC: BATCH when every source is bounded, else STREAMING.  In all modes records are pipelined from task to task.
    """

    STREAMING = "STREAMING"
    BATCH = "BATCH"
    AUTOMATIC = "AUTOMATIC"
