"""Commands that ask one question and print a table: they are done before typer, aiohttp and rich would be imported.

``flowlet list`` costs 1.2 CPU seconds with these, 0.25 without (``bench/startup.py``), and people type it often.

Side:   shared.
Rules:  a command line that is not understood here, with ``--help`` or a mistake in it, is left to ``flowlet.cli.main``,
        whose commands call these functions.  So is one for which ``config.yaml`` may have an address.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from flowlet.common.job_status import JobStatus
from flowlet.common.written_values import JOB_MANAGER_VARIABLE, parse_job_manager_option
from flowlet.errors import FlowletError
from flowlet.rpc.early_signals import complain
from flowlet.rpc.secret import secret_for
from flowlet.rpc.signed_requests import ask_once

DEFAULT_JOBMANAGER: Final = "127.0.0.1:8081"
_CONFIGURATION_VARIABLE: Final = "FLOWLET_CONF_DIR"
EXIT_ERROR: Final = 2
_GAP: Final = 2  # between columns, as rich has it


def list_jobs(jobmanager: str, secret_file: Path | None, *, running: bool, everything: bool) -> None:
    """Print the jobs that have not ended, those that run, or all."""
    jobs = [
        job
        for job in _ask(jobmanager, secret_file, "/jobs/overview")["jobs"]
        if _is_listed(job, running=running, everything=everything)
    ]
    rows = [
        (job["jid"], job["name"], job["state"], f"{job['duration'] / 1000:.1f} s", str(job["tasks"]["total"]))
        for job in jobs
    ]
    print_table(("job", "name", "state", "duration", "tasks"), rows)
    for job in jobs:
        if job["stuck-tasks"]:
            print(  # noqa: T201 - for the person who typed the command
                f"{job['name']}: {job['stuck-tasks']} cancelled tasks do not end; 'flowlet job {job['jid'][:8]}' shows "
                "where they stand"
            )


def list_task_managers(jobmanager: str, secret_file: Path | None) -> None:
    """Print the TaskManagers."""
    documents = _ask(jobmanager, secret_file, "/taskmanagers")["taskmanagers"]
    columns = tuple(documents[0]) if documents else ("id",)
    print_table(columns, [tuple(str(document[column]) for column in columns) for document in documents])


def run_quickly(arguments: Sequence[str]) -> int | None:
    """Run a command line; return the exit code.  None: ``flowlet.cli.main`` must run it, and nothing was done."""
    known = _COMMANDS.get(arguments[0]) if arguments else None
    options = None if known is None else _options(arguments[1:], known[1])
    if known is None or options is None or os.environ.get(_CONFIGURATION_VARIABLE, "").strip():
        return None
    jobmanager = options.pop("jobmanager", os.environ.get(JOB_MANAGER_VARIABLE) or DEFAULT_JOBMANAGER)
    secret_file = options.pop("secret_file", None)
    try:
        known[0](jobmanager, None if secret_file is None else Path(secret_file), options)
    except (FlowletError, OSError) as error:
        return complain("flowlet", str(error), EXIT_ERROR)
    return 0


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: on a terminal, columns fit its width; in a pipe, every row is whole."""
    cells = [columns, *rows]
    if sys.stdout.isatty() or not all(each.isascii() and each.isprintable() for row in cells for each in row):
        _print_with_rich(columns, rows)
        return
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    for row in cells:
        print((" " * _GAP).join(each.ljust(width) for each, width in zip(row, widths, strict=True)))  # noqa: T201 - as above


def _print_with_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False)
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table, crop=False)


def _ask(jobmanager: str, secret_file: Path | None, path: str) -> Any:
    host, port = parse_job_manager_option(jobmanager, os.environ)
    return msgspec.json.decode(ask_once(host, port, secret_for(host, port, secret_file), path).raise_for_status().body)


def _is_listed(job: Mapping[str, Any], *, running: bool, everything: bool) -> bool:
    status = JobStatus[job["state"]]
    if running and not everything:
        return status is JobStatus.RUNNING
    return everything or not status.is_globally_terminal_state()


def _options(arguments: Sequence[str], flags: Mapping[str, str]) -> dict[str, str] | None:
    """The options by their names; a flag has some text.  None: an argument is not known here."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for each in rest:
        name, equals, value = each.partition("=")
        if each in flags:
            found[flags[each]] = each
        elif name in _VALUES and (equals or name == each) and not (equals and not name.startswith("--")):
            text = value if equals else next(rest, None)
            if text is None or text.startswith("-"):
                return None
            found[_VALUES[name]] = text
        else:
            return None
    return found


_VALUES: Final = {"--jobmanager": "jobmanager", "-m": "jobmanager", "--secret-file": "secret_file"}
_Command = Callable[[str, Path | None, Mapping[str, str]], None]
_COMMANDS: Final[dict[str, tuple[_Command, Mapping[str, str]]]] = {
    "list": (
        lambda jobmanager, secret_file, flags: list_jobs(
            jobmanager, secret_file, running="running" in flags, everything="everything" in flags
        ),
        {"--running": "running", "-r": "running", "--all": "everything", "-a": "everything"},
    ),
    "taskmanagers": (lambda jobmanager, secret_file, _flags: list_task_managers(jobmanager, secret_file), {}),
}
