"""A job that runs beside an attack: its counts are known exactly.

A producer in this process pushes words into a remote gate, two tasks count them by key, and the results come back to
this process.  So all of the cluster takes part: the control port, gates, the connection between the TaskManagers, and
readers of results.

Units:  seconds.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import FlowletError
from flowlet.ingest import GateError, PartitionOffer, close_producers, open_gate
from netstack.errors import NetstackError
from tests.attack.functions import first_of

# From the end of the attack to the last result; more than any deadline of the product that is in between.
END_S: Final = 40.0
_CONSEQUENCE_S: Final = 3.0  # how long a job that has lost its only producer is given to fail, too
_PAUSE_S: Final = 0.02
_BATCH: Final = 20
PRODUCT_ERRORS: Final = (FlowletError, GateError, NetstackError)


def environment_of(address: str, parallelism: int = 2) -> StreamExecutionEnvironment:
    """Return an environment for a job on the cluster at ``address``; the caller closes it."""
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({"flowlet.jobmanager": address}))
    return env.set_parallelism(parallelism)


class Bystander:
    """The job.  ``end`` tells what became of it: the reason of its failure, or None."""

    def __init__(self, address: str, secret_file: Path, name: str, seed: int) -> None:
        self._address, self._secret_file, self.name = address, secret_file, name
        self._random = random.Random(seed)
        self._pushed: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._num_results = 0
        self._is_over = threading.Event()
        self._is_running = threading.Event()
        self._has_failed = threading.Event()
        self._errors: list[str] = []
        self._longest_pause_s = 0.0
        self._env = environment_of(address)
        stream = self._env.from_remote_gate(name, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]), producers=1)
        results: Any = stream.key_by(first_of).sum(1).execute_and_collect(name)
        self._results = results
        self._threads = [
            threading.Thread(target=each, name=f"bystander {each.__name__}", daemon=True)
            for each in (self._push, self._collect)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_pushed(self) -> int:
        return self._pushed.total()

    @property
    def longest_pause_s(self) -> float:
        """The longest time between two results while the producer pushed."""
        return self._longest_pause_s

    def wait_until_running(self) -> None:
        assert self._is_running.wait(END_S), f"the bystander gave no result within {END_S:.0f} s: {self._errors}"
        assert not self._errors, self._errors

    def wait_failed(self, timeout_s: float) -> float | None:
        """Wait for its failure; after how many seconds it came, None: not within ``timeout_s``."""
        started_s = time.monotonic()
        return time.monotonic() - started_s if self._has_failed.wait(timeout_s) else None

    def end(self, end_s: float = END_S, release: Callable[[], object] = lambda: None) -> str | None:
        """Stop pushing and wait for the job's end; the reason if it failed.

        ``release``: called before anything is closed.

        Raises:
            AssertionError: it did not end, or it ended well with wrong counts.
        """
        self._is_over.set()
        deadline = time.monotonic() + end_s
        try:
            producer, collector = self._threads
            producer.join(max(0.0, deadline - time.monotonic()))
            if self._errors and not producer.is_alive():  # the gate waits for another attempt, as it should
                collector.join(_CONSEQUENCE_S)
                if collector.is_alive():
                    release()
                    with suppress(*PRODUCT_ERRORS):
                        self._results.close()
            collector.join(max(0.0, deadline - time.monotonic()))
            stuck = [thread.name for thread in self._threads if thread.is_alive()]
        finally:
            release()
            with suppress(*PRODUCT_ERRORS):
                self._results.close()
            with suppress(*PRODUCT_ERRORS):
                self._env.close()
        if stuck:
            close_producers()
        for thread in self._threads:
            thread.join(END_S)
        assert not stuck, f"{stuck} of job {self.name!r} did not end within {end_s:.0f} s; {self._errors}"
        if self._errors:
            assert not self._is_too_high(), f"wrong counts: {difference(self._counted, self._pushed)}; {self._errors}"
            return "; ".join(self._errors)
        assert self._counted == self._pushed, f"wrong counts: {difference(self._counted, self._pushed)}"
        assert self._num_results == self.num_pushed, f"{self._num_results} results of {self.num_pushed} records"
        return None

    def _is_too_high(self) -> bool:
        return any(count > self._pushed[word] + _BATCH for word, count in self._counted.items())

    def _push(self) -> None:
        try:
            gate = open_gate(self.name, jobmanager=self._address, timeout_s=END_S, secret_file=self._secret_file)
            with gate.open_partition(PartitionOffer(self.name, 0)) as writer:
                while not self._is_over.wait(_PAUSE_S):
                    words = [f"word {self._random.randrange(50)}" for _ in range(_BATCH)]
                    writer.write_records([(word, 1) for word in words])
                    self._pushed.update(words)
                writer.finish(END_S)
        except PRODUCT_ERRORS as error:
            self._errors.append(f"producer: {type(error).__name__}: {error}")
            self._has_failed.set()

    def _collect(self) -> None:
        last_s = None
        try:
            for word, count in self._results:
                now_s = time.monotonic()
                if last_s is not None and not self._is_over.is_set():
                    self._longest_pause_s = max(self._longest_pause_s, now_s - last_s)
                last_s = now_s
                self._counted[word] = count
                self._num_results += 1
                self._is_running.set()
        except PRODUCT_ERRORS as error:
            self._errors.append(f"job: {type(error).__name__}: {error}")
            self._has_failed.set()
            self._is_running.set()


def difference(found: Counter[str], expected: Counter[str]) -> str:
    keys = sorted(found.keys() | expected.keys())
    return ", ".join(f"{key}: {found[key]} instead of {expected[key]}" for key in keys if found[key] != expected[key])
