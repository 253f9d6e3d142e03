"""Runs a job of an attack, with a deadline.

Side:   any.
Units:  seconds.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowlet.datastream import DataStream
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.errors import FlowletError
from flowlet.ingest import GateError
from netstack.errors import NetstackError
from tests.attack.bystander import END_S, environment_of


@dataclass
class JobOutcome:
    """The end of a job: its results, or its failure as text."""

    results: list[Any] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0
    is_late: bool = False
    cancel_s: float | None = None

    @property
    def summary(self) -> str:
        if self.is_late:
            return "never ended"
        if self.error is None:
            return f"{len(self.results)} results in {self.seconds:.1f} s"
        return f"told after {self.seconds:.1f} s: {self.error.splitlines()[0][:110]}"


def run_job(
    address: str,
    build: Callable[[StreamExecutionEnvironment], DataStream],
    deadline_s: float,
    *,
    parallelism: int = 1,
    cancel_after_s: float | None = None,
    name: str = "attack",
) -> JobOutcome:
    """Run a job and collect its results; one that is not done in time is cancelled.

    Args:
        address: of the JobManager.
        build: makes the stream whose results are read.
        deadline_s: until the last result or the failure; for the end of a cancelled job, too.
        parallelism: of the job.
        cancel_after_s: cancel it then, by closing the results; ``cancel_s`` is how long that took.
        name: of the job.
    """
    outcome = JobOutcome()
    env = environment_of(address, parallelism)
    started_s = time.monotonic()
    results: list[Any] = []

    def run() -> None:
        try:
            stream: Any = build(env).execute_and_collect(name)
            results.append(stream)
            outcome.results.extend(stream)
        except (FlowletError, GateError, NetstackError) as error:
            outcome.error = f"{type(error).__name__}: {error}\n{error.__cause__ or ''}"
        outcome.seconds = time.monotonic() - started_s

    thread = threading.Thread(target=run, name=f"job {name}", daemon=True)
    thread.start()
    thread.join(deadline_s if cancel_after_s is None else cancel_after_s)
    if thread.is_alive():
        begun_s = time.monotonic()
        for each in results:
            each.close()
        thread.join(deadline_s)
        if cancel_after_s is not None and not thread.is_alive():
            outcome.cancel_s = time.monotonic() - begun_s
        outcome.is_late = cancel_after_s is None or thread.is_alive()
    env.close()
    thread.join(END_S)
    return outcome
