"""All imports of a JobManager and a TaskManager at once, for a process from which they are forked."""

import flowlet.jm.cluster_entrypoint
import flowlet.tm.command
from flowlet.tm.taskmanager_process import import_task_modules

__all__ = ["flowlet"]

import_task_modules()
