"""Parts that the commands of ``flowlet`` share: the JobManager that they ask, jobs by the first digits of their ids.

Side:   shared.
"""

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from flowlet.client.remote import JobManagerApi, RemoteTarget
from flowlet.common.paths import absolute_url
from flowlet.common.units.host_address import JOB_MANAGER_VARIABLE, parse_job_manager_option
from flowlet.errors import FlowletError

T = TypeVar("T")

JobManagerOption = Annotated[
    str,
    typer.Option("--jobmanager", "-m", envvar=JOB_MANAGER_VARIABLE, help="Where the JobManager listens, host:port."),
]
SecretFileOption = Annotated[Path | None, typer.Option(help="Default: $FLOWLET_SECRET_FILE or ~/.flowlet/secret.")]
JobArgument = Annotated[str, typer.Argument(help="The job's id, or the first digits of it.")]


def ask(jobmanager: str, secret_file: Path | None, request: Callable[[JobManagerApi], Coroutine[Any, Any, T]]) -> T:
    """The answer of a JobManager.  Raises FlowletError: there is none, or it says no."""
    host, port = parse_job_manager_option(jobmanager, os.environ)
    client = RemoteTarget(host, port, secret_file).open(needed_slots=0)
    try:
        return client.call(request)
    finally:
        client.close()


async def full_job_id(api: JobManagerApi, prefix: str) -> str:
    """The id of the one job whose id begins so.  Raises FlowletError: there is none, or more than one."""
    found = [job["jid"] for job in await api.list_jobs() if job["jid"].startswith(prefix)]
    if len(found) != 1:
        raise FlowletError(
            f"no job's id begins with {prefix!r}" if not found else f"{len(found)} jobs' ids begin with {prefix!r}"
        )
    job_id: str = found[0]
    return job_id


def absolute(path: str) -> str:
    """A path as all processes see it; a URL as it is.  Raises StorageError: it names no file of a machine."""
    return absolute_url(path)
