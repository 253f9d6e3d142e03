"""``JobExecutionResult``: the result of a finished job.

Side:   pure.
Source: PyFlink ``pyflink.common.job_execution_result``.  Python functions cannot make accumulators, there as here:
        there are none.  ``JobClient.metrics`` has the counters of functions.
"""

from typing import Any

from flowlet.common.job_id import JobID
from flowlet.errors import FlowletError

__all__ = ["DetachedJobExecutionResult", "JobExecutionResult"]


class JobExecutionResult:
    """The id and the running time of a finished job."""

    __slots__ = ("_job_id", "_net_runtime_ms")

    def __init__(self, job_id: JobID, net_runtime_ms: int) -> None:
        self._job_id = job_id
        self._net_runtime_ms = net_runtime_ms

    def get_job_id(self) -> JobID:
        """Return the id of the job."""
        return self._job_id

    def get_net_runtime(self) -> int:
        """Return the milliseconds from the job's start to its end, without the start of an embedded cluster."""
        return self._net_runtime_ms

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Return None: functions in Python have no accumulators, but metrics (``JobClient.metrics``)."""
        return self.get_all_accumulator_results().get(accumulator_name)

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Return an empty dict; see ``get_accumulator_result``."""
        return {}

    def __str__(self) -> str:
        return f"Job with JobID {self._job_id} has finished.\nJob Runtime: {self._net_runtime_ms} ms"


class DetachedJobExecutionResult(JobExecutionResult):
    """The result of a job that was submitted detached: its id, and no results."""

    def __init__(self, job_id: JobID) -> None:
        super().__init__(job_id, 0)

    def get_net_runtime(self) -> int:
        """Refuse: the job has not ended.  Raises FlowletError: always."""
        raise FlowletError(f"job {self.get_job_id()} was submitted detached: how long it runs is not known here")

    def __str__(self) -> str:
        return f"Job has been submitted with JobID {self.get_job_id()}"
