"""All imports of a JobManager, a TaskManager and a program at once, for a process from which they are forked.

Beside our modules these are 300 of other packages, which processes of a cluster import only while they read their
command line, begin to log and listen: 0.35 s of CPU for each process.
"""

import sys
from contextlib import suppress

import aiohttp.web
import structlog

import flowlet.client.embedded
import flowlet.client.executor
import flowlet.client.progress
import flowlet.client.translate
import flowlet.datastream.environment_sources
import flowlet.datastream.joins.window_join
import flowlet.datastream.stream_execution_environment
import flowlet.jm.cluster_entrypoint
import flowlet.rpc.http
import flowlet.rpc.signed_websocket
import flowlet.sinks.sink_operator
from flowlet.errors import ConfigError
from flowlet.tm.command import app
from flowlet.tm.taskmanager_process import import_task_modules

__all__ = ["aiohttp", "flowlet", "structlog"]

import_task_modules()
with suppress(ConfigError):
    app(["--jobmanager", "nowhere"], standalone_mode=False)
sys.excepthook = sys.__excepthook__  # typer has put its own there, and programs would have it
