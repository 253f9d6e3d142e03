"""``JobExecutionResult``: the result of a finished job.

Side:   pure.
Source: PyFlink ``pyflink.common.job_execution_result``.
Absent: accumulators.
"""

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
        """The id of the job."""
        return self._job_id

    def get_net_runtime(self) -> int:
        """Milliseconds from the job's start to its end, without the start of an embedded cluster."""
        return self._net_runtime_ms

    def __str__(self) -> str:
        return f"Job with JobID {self._job_id} has finished.\nJob Runtime: {self._net_runtime_ms} ms"


class DetachedJobExecutionResult(JobExecutionResult):
    """What there is of a job that nobody waits for."""

    def __init__(self, job_id: JobID) -> None:
        super().__init__(job_id, 0)

    def get_net_runtime(self) -> int:
        """Raises FlowletError: the job has not ended."""
        raise FlowletError(f"job {self.get_job_id()} was submitted detached: how long it runs is not known here")

    def __str__(self) -> str:
        return f"Job has been submitted with JobID {self.get_job_id()}"
