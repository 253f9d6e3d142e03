"""The command ``flowlet``: run programs, look at a cluster, stop jobs, read state, start the processes.

Side:   shared.
Rules:  every error is one line on standard error, exit code 2; so is Ctrl-C, exit code 130.  ``jm`` and ``tm`` replace
        this process: signals and output are theirs.
"""

import os
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final

import typer

from flowlet.cli import quick_commands
from flowlet.cli.asking import JobArgument, JobManagerOption, SecretFileOption, ask, full_job_id
from flowlet.cli.quick_commands import DEFAULT_JOBMANAGER, complain, print_table
from flowlet.cli.run_program import RUN_SETTINGS, run_program
from flowlet.cli.savepoint_commands import stop_job, take_savepoint
from flowlet.cli.show_state import show_state
from flowlet.client.remote import JobDocument, JobManagerApi
from flowlet.client.running_job import describe_end, still_running
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError
from flowlet.rpc.config_file import job_manager_address_of_commands

_EXIT_ERROR: Final = 2
_EXIT_INTERRUPTED: Final = 130  # as a shell reports a program that SIGINT ended
_PASS_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_ASKING: Final = ("list", "job", "cancel", "taskmanagers", "savepoint", "stop")
_FORMATS: Final = ("table", "json")
_METRICS: Final = {
    "records in": "num_records_in",
    "records out": "num_records_out",
    "bytes out": "num_bytes_out",
    "busy ms": "accumulated_busy_ms",
    "idle ms": "accumulated_idle_ms",
    "backpressured ms": "accumulated_back_pressured_ms",
}


app = typer.Typer(
    name="flowlet",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Stateful stream processing in pure Python.",
)


def main() -> None:
    """The command, from modules that are imported already; ``flowlet.__main__`` minds signals before that."""
    sys.exit(run_command())


def run_command(arguments: list[str] | None = None) -> int:
    """Parse a command line (None: of this process) and run it; the exit code."""
    try:
        # Commands return nothing; an exit code is that of typer, such as the one that it makes of Ctrl-C.
        code = app(arguments, standalone_mode=False, default_map=_defaults_of_file()) or 0
    except typer.TyperException as error:
        return complain(error.format_message(), _EXIT_ERROR)
    except (FlowletError, OSError) as error:
        return complain(str(error), _EXIT_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        code = _EXIT_INTERRUPTED
    return complain("interrupted", code) if code == _EXIT_INTERRUPTED else code


def _defaults_of_file() -> dict[str, dict[str, str]]:
    """What ``config.yaml`` says to the commands that ask a JobManager."""
    address = job_manager_address_of_commands(os.environ)
    return {} if address is None else {command: {"jobmanager": address} for command in _ASKING}


@app.callback(invoke_without_command=True)
def options(
    *,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True)] = False,
) -> None:
    """Stateful stream processing in pure Python."""
    if show_version:
        typer.echo(f"flowlet {installed_version()}")
        raise typer.Exit


@app.command("list")
def list_jobs(
    jobmanager: JobManagerOption = DEFAULT_JOBMANAGER,
    secret_file: SecretFileOption = None,
    *,
    running: Annotated[bool, typer.Option("--running", "-r", help="Only those that run.")] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
) -> None:
    """List the jobs that have not ended."""
    quick_commands.list_jobs(jobmanager, secret_file, running=running, everything=everything)


app.command("run", context_settings=RUN_SETTINGS)(run_program)
app.command("savepoint")(take_savepoint)
app.command("stop")(stop_job)
app.command("state")(show_state)


@app.command("job")
def show_job(
    job: JobArgument,
    jobmanager: JobManagerOption = DEFAULT_JOBMANAGER,
    secret_file: SecretFileOption = None,
    output_format: Annotated[
        str, typer.Option("--format", help="table, or json: the whole document of the REST API.")
    ] = "table",
) -> None:
    """Show one job: its tasks with their counters since its start, why it started again, and why it failed."""
    if output_format not in _FORMATS:
        raise FlowletError(f"--format is {output_format!r}, it must be one of {', '.join(_FORMATS)}")

    async def find(api: JobManagerApi) -> JobDocument:
        return await api.job(await full_job_id(api, job))

    document = ask(jobmanager, secret_file, find)
    if output_format == "json":
        import json  # no other command needs it

        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(f"{document['name']}  {document['jid']}  {document['state']}  {document['duration'] / 1000:.1f} s")
    rows = [
        (
            f"{vertex['name']} ({each['subtask'] + 1}/{vertex['parallelism']})",
            each["state"],
            *(f"{_counters(each)[key]:,}" for key in _METRICS.values()),
        )
        for vertex in document["vertices"]
        for each in vertex["subtasks"]
    ]
    print_table(("task", "state", *_METRICS), rows)
    _show_restarts(document)
    if document["state"] in (JobStatus.FAILED.name, JobStatus.FAILING.name, JobStatus.CANCELLING.name) or document.get(
        "cancel-reason"
    ):
        typer.echo(describe_end(document))


def _counters(subtask: JobDocument) -> dict[str, int]:
    """Those of all attempts; an older JobManager has only those of the newest one."""
    found: dict[str, int] = subtask["metrics-of-all-attempts" if "metrics-of-all-attempts" in subtask else "metrics"]
    return found


def _show_restarts(document: JobDocument) -> None:
    restarts = document.get("restarts", [])
    if not restarts:
        return
    number = document["numRestarts"]
    more = f", the last {len(restarts)} of them" if number > len(restarts) else ""
    typer.echo(
        f"\n{number} restart{'' if number == 1 else 's'}{more}, the newest first; the counters above are sums over all "
        "attempts"
    )
    rows = [(_time(each["failed"]), _time(each["restarted"]), each["task"] or "", each["cause"]) for each in restarts]
    print_table(("failed", "started again", "task", "cause"), rows)


def _time(time_ms: int) -> str:
    """A time of this machine's clock, to the second."""
    return (
        "not yet" if time_ms < 0 else datetime.fromtimestamp(time_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    )


@app.command()
def cancel(
    job: JobArgument, jobmanager: JobManagerOption = DEFAULT_JOBMANAGER, secret_file: SecretFileOption = None
) -> None:
    """Cancel a job and wait for its end, or for the tasks that do not end: then it shows where they stand."""

    async def cancel_and_wait(api: JobManagerApi) -> JobDocument:
        job_id = await full_job_id(api, job)
        await api.cancel(job_id)
        document = await api.wait_terminal(job_id, None)
        assert document is not None, "no timeout was given"
        return document

    document = ask(jobmanager, secret_file, cancel_and_wait)
    typer.echo("\n".join([f"{document['jid']} {document['state']}", *still_running(document)]))


@app.command("taskmanagers")
def list_task_managers(jobmanager: JobManagerOption = DEFAULT_JOBMANAGER, secret_file: SecretFileOption = None) -> None:
    """List the TaskManagers."""
    quick_commands.list_task_managers(jobmanager, secret_file)


@app.command("jm", context_settings=_PASS_ON)
def start_job_manager(ctx: typer.Context) -> None:
    """Start a JobManager: the same as ``python -m flowlet.jm``."""
    _become("flowlet.jm", ctx.args)


@app.command("tm", context_settings=_PASS_ON)
def start_task_manager(ctx: typer.Context) -> None:
    """Start a TaskManager: the same as ``python -m flowlet.tm``."""
    _become("flowlet.tm", ctx.args)


def installed_version() -> str:
    """The version of the installed package."""
    try:
        return version("flowlet")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "(not installed)"


def _become(module: str, arguments: list[str]) -> None:
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - our own module, no shell


if __name__ == "__main__":
    main()
