"""A running job with a given end, without a cluster."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flowlet.common import JobExecutionResult, JobID, JobStatus
from flowlet.common.job_client import ProgressMode

JOB_ID = "0123456789abcdef" * 2
RESULT = JobExecutionResult(JobID(JOB_ID), 7)


class ScriptedRecords(Iterator[Any]):
    """Each record is a chunk of its own."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def __next__(self) -> Any:
        return next(self._values)

    def chunks(self) -> Iterator[Any]:
        return ([value] for value in self._values)


@dataclass
class ScriptedJob:
    """Gives its records; may fail behind them, or while they are read.  Notes what is asked of it."""

    values: tuple[Any, ...] = ()
    failure: BaseException | None = None
    read_failure: BaseException | None = None
    state: JobStatus = JobStatus.RUNNING
    job_id: str = JOB_ID
    is_inherited: bool = False
    calls: list[str] = field(default_factory=list)

    def status(self) -> JobStatus:
        return self.state

    def cancel(self) -> None:
        self.calls.append("cancel")

    def cancel_after_interrupt(self) -> None:
        self.calls.append("cancel after interrupt")

    def announce(self, progress: ProgressMode) -> None:
        """Show nothing."""

    def wait(self, timeout: float | None = None, *, progress: ProgressMode = ProgressMode.OFF) -> JobExecutionResult:
        self.calls.append("wait")
        if self.failure is not None:
            raise self.failure
        return RESULT

    def collect(self, edge_id: str) -> ScriptedRecords:
        return ScriptedRecords(self._read(edge_id))

    def _read(self, edge_id: str) -> Iterator[Any]:
        self.calls.append(f"collect {edge_id}")
        yield from self.values
        if self.read_failure is not None:
            raise self.read_failure

    def close(self) -> None:
        self.calls.append("close")
