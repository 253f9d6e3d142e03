"""The JobManager as a program: options, signals and the event loop.

Side:   loop.
Rules:  one line on standard output when it is ready, log lines on standard error.  SIGINT, SIGTERM and SIGHUP end it
        with exit code 0; a bad option ends it with one line on standard error and exit code 2.
Source: Flink ``ClusterEntrypoint``.
"""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from flowlet.errors import ConfigError
from flowlet.jm.job_manager import JobManager
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.logs import configure_logging
from flowlet.rpc.config_file import job_manager_defaults
from flowlet.rpc.early_signals import STOP_SIGNALS, complain
from flowlet.rpc.secret import load_or_create_secret
from netstack.log_lines import LogLines
from netstack.loop.uv_loop import UvLoop

log = LogLines(__name__)

_PROGRAM = "python -m flowlet.jm"
_EXIT_BAD_OPTION = 2
_MS_PER_S = 1000
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def jobmanager(
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.", min=0, max=65_535)] = 8081,
    advertise: Annotated[
        list[str] | None,
        typer.Option(help="host:port of another way to this port, such as a tunnel's end; may be repeated."),
    ] = None,
    slot_request_timeout: Annotated[float, typer.Option(help="Seconds that a job waits for its slots.")] = 30.0,
    heartbeat_interval_s: Annotated[
        float, typer.Option(help="Seconds between two signs of life to a TaskManager.")
    ] = 10.0,
    heartbeat_timeout_s: Annotated[
        float,
        typer.Option(
            help="Seconds without a sign of life after which a TaskManager is lost, and this JobManager to it."
        ),
    ] = 50.0,
    secret_file: Annotated[
        Path | None,
        typer.Option(help="File with the cluster's secret; default $FLOWLET_SECRET_FILE or ~/.flowlet/secret."),
    ] = None,
    job_store: Annotated[
        Path | None,
        typer.Option(
            help="Directory where jobs are kept, so that a JobManager that is started again goes on with them; "
            "default: none."
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning, error or critical.")] = "info",
    log_format: Annotated[str, typer.Option(help="auto, console or json.")] = "auto",
) -> None:
    """Run a JobManager until it is interrupted."""
    configure_logging(log_level, log_format)
    config = JobManagerConfig(
        secret=load_or_create_secret(secret_file),
        advertised_addresses=tuple(advertise or ()),
        slot_request_timeout_s=slot_request_timeout,
        heartbeat_interval_ms=round(heartbeat_interval_s * _MS_PER_S),
        heartbeat_timeout_s=heartbeat_timeout_s,
        job_store=None if job_store is None else job_store.absolute(),
    )
    uvloop.run(serve(config, host, port), loop_factory=UvLoop)


async def serve(config: JobManagerConfig, host: str, port: int) -> None:
    """Run a JobManager until a signal comes.

    Raises:
        ConfigError: it cannot listen there.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Before the start: a signal that comes meanwhile must not kill the process.
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    job_manager = JobManager(config)
    starting = asyncio.create_task(job_manager.start(host, port), name="start")
    # A signal ends the start, too: it may wait for another JobManager's lock.
    stopping = asyncio.create_task(stopped.wait(), name="stopped")  # waits for a signal; ended by it, or by the start
    # waits for the job store or a signal; ended by them
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    # A file server that does not answer must not hold up the end.
    if not starting.done() and config.job_store is not None:
        starting.cancel()
        log.info("JobManager stopped", before="it had read its job store")
        return
    bound_host, bound_port = await starting  # waits for the socket to be bound; ended by the operating system, at once
    try:
        name = f"[{bound_host}]" if ":" in bound_host else bound_host
        print(f"JobManager listening on http://{name}:{bound_port}", flush=True)  # noqa: T201
        await stopped.wait()  # waits for a signal; ended by it
    finally:
        await job_manager.close()


def run_command() -> int:
    """Parse the command line and run; returns the exit code."""
    try:
        app(standalone_mode=False, default_map=job_manager_defaults(os.environ))
    except ConfigError as error:
        message = str(error)
    except typer.TyperException as error:
        message = error.format_message()
    else:
        return 0
    return complain(_PROGRAM, message, _EXIT_BAD_OPTION)
