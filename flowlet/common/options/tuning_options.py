"""Options of Flink and PyFlink that only change how fast a job is there, and change nothing here: a program that sets them runs.

Side:   pure.
Rules:  each is told of by an ``IgnoredOptionWarning``.  An option that could change results is never in this list.
Source: PyFlink ``PythonOptions``; Flink ``PipelineOptions``.
"""

from typing import Final

__all__ = ["IGNORED", "OBJECT_REUSE", "IgnoredOptionWarning"]

OBJECT_REUSE: Final = "pipeline.object-reuse"

_IN_PROCESS: Final = "functions run in the TaskManager itself, chunk by chunk"
_SHARED: Final = "functions in a line always pass on the record itself, as PyFlink's do"

IGNORED: Final = {
    name: reason
    for reason, names in {
        _SHARED: OBJECT_REUSE,
        _IN_PROCESS: "python.execution-mode python.fn-execution.arrow.batch.size python.fn-execution.bundle.size"
        " python.fn-execution.bundle.time python.fn-execution.memory.managed python.fn-execution.memory.slot"
        " python.fn-execution.streaming.enabled python.operator-chaining.enabled python.state.cache-size"
        " python.map-state.read-cache-size python.map-state.write-cache-size python.map-state.iterate-response-batch-size"
        " python.systemenv.enabled python.client.executable",
    }.items()
    for name in names.split()
}


class IgnoredOptionWarning(UserWarning):
    """An option has no effect here; the job's results are the same without it."""
