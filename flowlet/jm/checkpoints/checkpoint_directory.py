"""Whether the JobManager can write checkpoints where a job wants them: tried at submission, not at the first
checkpoint.

Side:  loop.
Rules: the storage is used on another thread, and one that does not answer refuses the job: its checkpoints would only
       expire.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from flowlet.errors import JobGraphError
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.storage.checkpoint_storage import CheckpointStorage
from netstack.loop.background_call import CallInBackground

PROBE_TIMEOUT_S: Final = 20.0  # below the 30 s that the client waits for the answer to a submission


class ProbedStorage(Protocol):
    """The part of ``CheckpointStorage`` that is needed here; blocking."""

    def check_writable(self) -> None:
        """Write a file and remove it."""


async def check_checkpoint_directory(
    job: JobGraphMessage,
    call_in_background: CallInBackground,
    open_storage: Callable[[str, str], ProbedStorage] = CheckpointStorage,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> None:
    """Raises JobGraphError: the job takes checkpoints, and they could not be written; the message names the place and
    says what to do.
    """
    settings = job.settings.checkpoints
    if settings is None or not settings.is_periodic:
        return
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)

    def succeed(_: None) -> None:
        if not answer.done():
            answer.set_result(None)

    call_in_background(
        lambda: open_storage(settings.directory, job.job_id).check_writable(),
        succeed,
        fail,
        "probe of a directory for checkpoints",
    )
    try:
        async with asyncio.timeout(timeout_s):
            await answer
    except TimeoutError as error:
        raise JobGraphError(
            f"checkpoints cannot be kept in {settings.directory!r}: it did not answer within {timeout_s:g} s; is the "
            "file server or the "
            "store up, and can the JobManager reach it?"
        ) from error
    except Exception as error:
        raise JobGraphError(f"the JobManager cannot keep checkpoints: {error}") from error
