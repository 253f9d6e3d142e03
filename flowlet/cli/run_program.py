"""``flowlet run``: starts a program as ``python PROGRAM.py`` does, with options from the command line.

Side:   shared.
Rules:  this process becomes the program: its output, signals and exit code are those of ``python``.  What the program
        sets itself wins, as in Flink.
Source: Flink ``CliFrontend.run``, ``ProgramOptions``.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from flowlet.cli.asking import absolute
from flowlet.common.configuration import Configuration
from flowlet.common.execution_config import EnvironmentSettings
from flowlet.common.job_settings import IGNORES_UNCLAIMED_STATE, RECOVERY_PATH
from flowlet.common.option import row_of
from flowlet.common.options.client_options import DETACHED_VARIABLE, OPTIONS_VARIABLE
from flowlet.common.options.known_options import check_options
from flowlet.common.units.host_address import JOB_MANAGER_VARIABLE, parse_address
from flowlet.errors import ConfigError, FlowletError

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
    secret_file: Annotated[
        Path | None, typer.Option(help="Default: $FLOWLET_SECRET_FILE or ~/.flowlet/secret.")
    ] = None,
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
        options[RECOVERY_PATH] = absolute(savepoint)
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
