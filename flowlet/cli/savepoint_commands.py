"""``flowlet savepoint`` and ``flowlet stop``.

Side:   shared.
Source: Flink ``CliFrontend.savepoint``, ``CliFrontend.stop``.
"""

from typing import Annotated

import typer

from flowlet.cli.asking import JobArgument, JobManagerOption, SecretFileOption, absolute, ask, full_job_id
from flowlet.cli.quick_commands import DEFAULT_JOBMANAGER
from flowlet.client.remote import JobManagerApi

_DIRECTORY_HELP = "Where it is written; default: execution.checkpointing.savepoint-dir of the job."


def take_savepoint(
    job: JobArgument,
    directory: Annotated[str | None, typer.Argument(help=_DIRECTORY_HELP)] = None,
    jobmanager: JobManagerOption = DEFAULT_JOBMANAGER,
    secret_file: SecretFileOption = None,
) -> None:
    """Take a savepoint of a job, which goes on; prints its directory."""

    async def take(api: JobManagerApi) -> str:
        job_id = await full_job_id(api, job)
        request_id = await api.trigger_savepoint(job_id, None if directory is None else absolute(directory))
        return await api.wait_for_savepoint(job_id, request_id)

    typer.echo(ask(jobmanager, secret_file, take))


def stop_job(
    job: JobArgument,
    directory: Annotated[str | None, typer.Option("--savepoint-path", "-p", help=_DIRECTORY_HELP)] = None,
    jobmanager: JobManagerOption = DEFAULT_JOBMANAGER,
    secret_file: SecretFileOption = None,
    *,
    drain: Annotated[
        bool, typer.Option("--drain", help="Fire all timers of event time before: the job will not go on.")
    ] = False,
) -> None:
    """Stop a job with a savepoint, and wait for its end; prints the savepoint's directory."""

    async def stop(api: JobManagerApi) -> str:
        job_id = await full_job_id(api, job)
        request_id = await api.stop_with_savepoint(
            job_id, None if directory is None else absolute(directory), drain=drain
        )
        return await api.wait_for_savepoint(job_id, request_id)

    typer.echo(ask(jobmanager, secret_file, stop))
