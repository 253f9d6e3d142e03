"""The command ``flowlet``: run programs, look at a cluster, stop jobs, read state, start the processes.

Side:   shared.
Rules:  every error is one line on standard error, exit code 2; so is Ctrl-C, exit code 130.  With ``run``, ``jm`` and
        ``tm`` this process becomes the program: its output, signals and exit code are those of ``python``.  Settings in
        a program win over options of the command line, as in Flink.
Source: Flink ``CliFrontend``, ``ProgramOptions``.
"""

import json
import os
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from flowlet.cli import quick_commands
from flowlet.cli.quick_commands import DEFAULT_JOBMANAGER, EXIT_ERROR, print_table
from flowlet.client.remote import JobDocument, JobManagerApi, RemoteTarget
from flowlet.client.running_job import describe_end, still_running
from flowlet.common.configuration import Configuration
from flowlet.common.execution_config import EnvironmentSettings
from flowlet.common.job_settings import IGNORES_UNCLAIMED_STATE, RECOVERY_PATH
from flowlet.common.job_status import JobStatus
from flowlet.common.option import row_of
from flowlet.common.options.client_options import DETACHED_VARIABLE, OPTIONS_VARIABLE
from flowlet.common.options.known_options import check_options
from flowlet.common.paths import absolute_url
from flowlet.common.written_values import JOB_MANAGER_VARIABLE, parse_address, parse_job_manager_option
from flowlet.errors import ConfigError, FlowletError
from flowlet.rpc.config_file import job_manager_address_of_commands
from flowlet.rpc.early_signals import complain

if TYPE_CHECKING:
    import pyarrow as pa

    from flowlet.state_reader import SavedState


T = TypeVar("T")

JobManagerOption = Annotated[
    str,
    typer.Option("--jobmanager", "-m", envvar=JOB_MANAGER_VARIABLE, help="Where the JobManager listens, host:port."),
]
SecretFileOption = Annotated[Path | None, typer.Option(help="Default: $FLOWLET_SECRET_FILE or ~/.flowlet/secret.")]
JobArgument = Annotated[str, typer.Argument(help="The job's id, or the first digits of it.")]


def ask(jobmanager: str, secret_file: Path | None, request: Callable[[JobManagerApi], Coroutine[Any, Any, T]]) -> T:
    """Ask a JobManager; return the answer.  Raises FlowletError: there is no JobManager, or it refuses."""
    host, port = parse_job_manager_option(jobmanager, os.environ)
    client = RemoteTarget(host, port, secret_file).open(needed_slots=0)
    try:
        return client.call(request)
    finally:
        client.close()


async def full_job_id(api: JobManagerApi, prefix: str) -> str:
    """The id of the one job whose id has this beginning.  Raises FlowletError: there is none, or more than one."""
    found = [job["jid"] for job in await api.list_jobs() if job["jid"].startswith(prefix)]
    if len(found) != 1:
        raise FlowletError(
            f"no job's id begins with {prefix!r}" if not found else f"{len(found)} jobs' ids begin with {prefix!r}"
        )
    return str(found[0])


RUN_SETTINGS: Final = {"allow_interspersed_args": False}  # options behind the program are the program's
_SECRET_FILE_VARIABLE: Final = "FLOWLET_SECRET_FILE"  # noqa: S105 - the name of a variable


def run_program(
    program: Annotated[Path, typer.Argument(help="The Python file.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the program gets.", metavar="ARGS...")] = None,
    jobmanager: Annotated[
        str | None, typer.Option("--jobmanager", "-m", help="host:port; default: a cluster of its own.")
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", "-p", min=1, help="Of operators that set none.")
    ] = None,
    savepoint: Annotated[
        str | None, typer.Option("--from-savepoint", "-s", help="The savepoint or checkpoint to start from.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("-D", metavar="NAME=VALUE", help="Any option of docs/options.md.")
    ] = None,
    secret_file: SecretFileOption = None,
    *,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state", "-n", help="Leave out state of operators that the program does not have."
        ),
    ] = False,
    detached: Annotated[bool, typer.Option("--detached", "-d", help="Do not wait for the end of the job.")] = False,
) -> None:
    """Run a program."""
    if not program.is_file():
        raise FlowletError(f"there is no file {str(program)!r}")
    options = dict(map(_split, option or []))
    if parallelism is not None:
        options[row_of(EnvironmentSettings, "parallelism").name] = str(parallelism)
    if savepoint is not None:
        options[RECOVERY_PATH] = absolute_url(savepoint)
    if allow_non_restored_state:
        if RECOVERY_PATH not in options:
            raise FlowletError("--allow-non-restored-state has no effect without --from-savepoint (-s)")
        options[IGNORES_UNCLAIMED_STATE] = "true"
    check_options(Configuration.from_dict(options))
    variables = {OPTIONS_VARIABLE: json.dumps(options)} if options else {}
    if detached:
        variables[DETACHED_VARIABLE] = "1"
    if jobmanager is not None:
        parse_address(jobmanager, "--jobmanager")
        variables[JOB_MANAGER_VARIABLE] = jobmanager
    if secret_file is not None:
        variables[_SECRET_FILE_VARIABLE] = str(secret_file.absolute())
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, str(program), *(arguments or [])], os.environ | variables)  # noqa: S606 - no shell


def _split(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not name or not equals:
        raise ConfigError(f"-D {option}: write it as -D NAME=VALUE")
    return name, value


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
        request_id = await api.trigger_savepoint(job_id, directory)
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
        request_id = await api.stop_with_savepoint(job_id, directory, drain=drain)
        return await api.wait_for_savepoint(job_id, request_id)

    typer.echo(ask(jobmanager, secret_file, stop))


_STATE_FORMATS: Final = ("table", "csv", "json", "arrow")
_MAX_ROWS: Final = 1000


def show_state(
    path: Annotated[str, typer.Argument(help="The directory of the savepoint or checkpoint, or its URL.")],
    operator: Annotated[str | None, typer.Option(help="The uid, id or name of an operator.")] = None,
    state: Annotated[str | None, typer.Option(help="The name of one of its states, or 'timers'.")] = None,
    output_format: Annotated[
        str, typer.Option("--format", help="table, csv, json (a line per entry) or arrow (needs --output).")
    ] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of the terminal.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows of a table that are shown.")] = _MAX_ROWS,
    secret_file: SecretFileOption = None,
) -> None:
    """Show the operators and states of a savepoint or checkpoint, or the entries of one state."""
    if output_format not in _STATE_FORMATS:
        raise FlowletError(f"--format is {output_format!r}, it must be one of {', '.join(_STATE_FORMATS)}")
    if (operator is None) != (state is None):
        raise FlowletError("--operator and --state go together")
    if operator is None and (output is not None or output_format != "table"):
        raise FlowletError(
            "--format and --output are for the entries of one state: name it with --operator and --state"
        )
    if output_format == "arrow" and output is None:
        raise FlowletError("--format arrow needs a file: --output FILE")
    sys.path.insert(0, os.getcwd())  # the classes of values are often beside the program
    from flowlet.state_reader import read_state  # and with it pyarrow, which the other commands do without

    found = read_state(path, secret_file=secret_file)
    if operator is None or state is None:
        _show_operators(found)
    else:
        _show_entries(found.table(operator, state), output_format, output, limit)


def _show_operators(found: "SavedState") -> None:
    kind = "savepoint" if found.is_savepoint else "checkpoint"
    typer.echo(f"{kind} {found.checkpoint_id} of job {found.job_name}  {found.job_id}")
    rows: list[tuple[str, ...]] = []
    for each in found.operators():
        head = (
            each.uid or each.operator_id,
            each.name,
            f"{each.parallelism}/{each.max_parallelism}",
            f"{each.num_bytes:,}",
        )
        states = [(state.name, state.kind, state.type_name, f"{state.num_entries:,}") for state in each.states]
        if each.num_timers:
            states.append(("timers", "timers", "", f"{each.num_timers:,}"))
        for index, state in enumerate(states or [("", "", "", "")]):
            rows.append((*(head if index == 0 else ("",) * len(head)), *state))
    print_table(("uid", "operator", "parallelism", "bytes", "state", "kind", "type", "entries"), rows)


def _show_entries(table: "pa.Table", output_format: str, output: Path | None, limit: int) -> None:
    import pyarrow as pa

    if output_format == "arrow":
        with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return
    if output_format == "table" and output is None:
        shown = table.slice(0, limit)
        print_table(table.column_names, [tuple(map(_text, row.values())) for row in shown.to_pylist()])
        if table.num_rows > limit:
            typer.echo(f"({table.num_rows - limit:,} more rows; --limit shows more, --format csv all)")
        return
    if output_format == "json":
        text = "".join(f"{json.dumps(row, default=str)}\n" for row in table.to_pylist())
    else:
        text = _as_csv(table)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _as_csv(table: "pa.Table") -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.column_names)
    for row in table.to_pylist():
        writer.writerow([_text(each) for each in row.values()])
    return text.getvalue()


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
    """Run the command; ``flowlet.__main__`` handles signals until the modules are imported."""
    sys.exit(run_command())


def run_command(arguments: list[str] | None = None) -> int:
    """Parse a command line (None: of this process) and run it; return the exit code."""
    try:
        # Commands return None; an exit code comes from typer, which makes one of Ctrl-C, for example.
        code = app(arguments, standalone_mode=False, default_map=_defaults_of_file()) or 0
    except typer.TyperException as error:
        return complain("flowlet", error.format_message(), EXIT_ERROR)
    except (FlowletError, OSError) as error:
        return complain("flowlet", str(error), EXIT_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        code = _EXIT_INTERRUPTED
    return complain("flowlet", "interrupted", code) if code == _EXIT_INTERRUPTED else code


def _defaults_of_file() -> dict[str, dict[str, str]]:
    """The address in ``config.yaml`` for the commands that ask a JobManager."""
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
    """The counters of all attempts; an older JobManager has only the counters of the newest attempt."""
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
    """Start a JobManager, as ``python -m flowlet.jm`` does."""
    _become("flowlet.jm", ctx.args)


@app.command("tm", context_settings=_PASS_ON)
def start_task_manager(ctx: typer.Context) -> None:
    """Start a TaskManager, as ``python -m flowlet.tm`` does."""
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
