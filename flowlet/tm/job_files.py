"""Gives a task the files that its job ships, before its operators are opened.

Side:       shared.  The task's thread; parts come over the loop, one at a time.
Units:      seconds.
"""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from flowlet.errors import FlowletError
from flowlet.rpc.control_messages import TaskDeploymentDescriptor
from flowlet.serde.deploy_blobs import DeploymentError
from flowlet.shipping.job_file_cache import Delivery, JobFileCache, JobPaths
from flowlet.tm.shipped_folders import SHIPPED_FOLDERS
from flowlet.tm.shipped_modules import SHIPPED_MODULES
from netstack.eventloop import EventLoopThread
from netstack.late import dataclass

_PART_TIMEOUT_S: Final = 60.0  # of a part of a mebibyte; the request itself ends after 30


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What a TaskManager has for it.

    ``fetch``: gets a part from the JobManager; called on the loop thread.
    """

    cache: JobFileCache
    fetch: Callable[[bytes], Coroutine[Any, Any, bytes]]


@contextmanager
def files_of_task(
    descriptor: TaskDeploymentDescriptor,
    files: JobFiles | None,
    loop: EventLoopThread,
    is_cancelled: Callable[[], bool],
) -> Iterator[JobPaths]:
    """Have the job's files here, its modules on the import path, and its archives in the working directory, while the
    block runs.

    Raises:
        DeploymentError: one could not be fetched, unpacked or installed, or does not go with what another job has here.
    """
    shipped = descriptor.code.files
    if not shipped:
        yield JobPaths()
        return
    if files is None:
        raise DeploymentError(f"job {descriptor.job_name!r} ships files, which this TaskManager does not take")
    fetch = files.fetch

    def check_cancelled() -> None:
        if is_cancelled():
            raise DeploymentError("the task was cancelled while the job's files were made ready")

    def fetch_part(digest: bytes) -> bytes:
        return loop.submit(fetch(digest)).result(_PART_TIMEOUT_S)

    with ExitStack() as stack:
        try:
            paths = stack.enter_context(
                files.cache.in_use(shipped, descriptor.job_id, Delivery(fetch_part, check_cancelled))
            )
            modules = SHIPPED_MODULES.read(paths.modules) if paths.modules is not None else {}
        except DeploymentError:
            raise
        except (FlowletError, OSError) as error:
            raise DeploymentError(f"the files of job {descriptor.job_name!r} are not ready: {error}") from error
        SHIPPED_FOLDERS.check_sources(modules, descriptor.job_name)
        stack.enter_context(SHIPPED_MODULES.in_use(modules, descriptor.job_name))
        stack.enter_context(SHIPPED_FOLDERS.in_use(paths, descriptor.job_name, modules))
        yield paths
