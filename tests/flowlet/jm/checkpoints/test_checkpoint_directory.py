"""Whether checkpoints can be written is tried once, in the background, and not for ever."""

import threading

import pytest

from flowlet.common.job_settings import CheckpointSettings
from flowlet.errors import JobGraphError, StorageError
from flowlet.jm.savepoints import check_checkpoint_directory
from flowlet.storage.checkpoint_storage import CheckpointStorage
from tests.flowlet.jm.checkpoints.coordinated import JOB_ID, job_of

JOB = job_of({"s": 1}, [], CheckpointSettings(1000, "/checkpoints"))


class Storage(CheckpointStorage):
    def __init__(self, error: Exception | None = None, gate: threading.Event | None = None) -> None:
        self.opened: list[tuple[str, str]] = []
        self.threads: list[threading.Thread] = []
        self._error = error
        self._gate = gate

    def open(self, directory: str, job_id: str) -> "Storage":
        self.opened.append((directory, job_id))
        return self

    def check_writable(self) -> None:
        self.threads.append(threading.current_thread())
        if self._gate is not None:
            self._gate.wait()  # ended by the test
        if self._error is not None:
            raise self._error


async def test_it_is_tried_on_another_thread() -> None:
    storage = Storage()

    await check_checkpoint_directory(JOB, storage.open)

    assert storage.opened == [("/checkpoints", JOB_ID)]
    assert threading.current_thread() not in storage.threads


async def test_without_checkpoints_nothing_is_tried() -> None:
    storage = Storage()

    await check_checkpoint_directory(job_of({"s": 1}, [], None), storage.open)

    assert storage.opened == []


async def test_a_failure_refuses_the_job() -> None:
    storage = Storage(StorageError("checkpoint file x cannot be written"))

    with pytest.raises(
        JobGraphError, match="the JobManager cannot keep checkpoints: checkpoint file x cannot be written"
    ):
        await check_checkpoint_directory(JOB, storage.open)


async def test_a_storage_that_does_not_answer_refuses_the_job() -> None:
    gate = threading.Event()
    storage = Storage(gate=gate)

    with pytest.raises(
        JobGraphError, match=r"'/checkpoints': it did not answer within 0.01 s; is the file server or the store up"
    ):
        await check_checkpoint_directory(JOB, storage.open, timeout_s=0.01)

    gate.set()
    storage.threads[0].join()
