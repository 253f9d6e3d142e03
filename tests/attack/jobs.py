"""Runs a job of an attack, or a new one behind it, with a deadline.

Units:  seconds.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowlet.datastream import DataStream
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from tests.attack.bystander import END_S, PRODUCT_ERRORS, difference, environment_of
from tests.attack.functions import first_of, with_one


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
        except PRODUCT_ERRORS as error:
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


def run_new_job(address: str, deadline_s: float, seed: int) -> float:
    """Run a small job with an exchange between both TaskManagers; how long it took.

    Raises:
        AssertionError: it failed, gave other results, or took longer than ``deadline_s``.
    """
    numbers = random.Random(seed).choices(range(1000), k=2000)
    expected = Counter(str(number % 7) for number in numbers)

    def build(env: StreamExecutionEnvironment) -> DataStream:
        return env.from_collection(numbers).rebalance().map(with_one).key_by(first_of).sum(1)

    job = run_job(address, build, deadline_s, parallelism=2, name="new job")
    found = Counter({str(key): count for key, count in job.results})
    assert not job.is_late, f"a new job did not end within {deadline_s:.0f} s"
    assert job.error is None, f"a new job failed: {job.error}"
    assert found == expected, f"a new job gave {difference(found, expected)}"
    return job.seconds
