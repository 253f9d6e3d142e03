"""Features of PyFlink that this version lacks: the error for a missing name says which feature it belongs to.

Side:  pure.
Rules: such a name is absent (``hasattr`` is False); the error is a ``FlowletError`` and an ``AttributeError``.
"""

from typing import Final

from flowlet.errors import FlowletError

__all__ = ["NotSupportedYetError", "missing_attribute"]

_WINDOWS: Final = "windows are not supported yet; collect records by key in a KeyedProcessFunction and emit them in on_timer()"
_STATE: Final = "keyed state is not supported yet; keep values by ctx.get_current_key() in a dict of the function, which restarts lose"
_BROADCAST: Final = "broadcast state is not supported yet; connect() with a stream that is broadcast()"
_CHECKPOINTS: Final = "checkpoints cannot be configured yet, and nothing is restored after a failure"
_SAVEPOINTS: Final = "savepoints are not supported yet; cancel() ends the job"
_SHIPPING: Final = "files and requirements are not shipped yet; install them where the TaskManagers run"
_JAVA: Final = "Java functions cannot run here; use sink_to()"
_ACCUMULATORS: Final = "accumulators are not supported yet; metrics() has the counters of the job"

_FEATURES: Final = {
    "window": _WINDOWS,
    "window_all": _WINDOWS,
    "count_window": _WINDOWS,
    "count_window_all": _WINDOWS,
    "get_state": _STATE,
    "get_list_state": _STATE,
    "get_map_state": _STATE,
    "get_reducing_state": _STATE,
    "get_aggregating_state": _STATE,
    "set_state_backend": _STATE,
    "get_state_backend": _STATE,
    "enable_changelog_state_backend": _STATE,
    "is_changelog_state_backend_enabled": _STATE,
    "get_metrics_group": "metrics of users are not supported yet",
    "get_metric_group": "metrics of users are not supported yet",
    "get_job_parameter": "job parameters are not supported yet; give values to the function's constructor",
    "set_global_job_parameters": "job parameters are not supported yet; give values to the function's constructor",
    "get_global_job_parameters": "job parameters are not supported yet; give values to the function's constructor",
    "broadcast_state": _BROADCAST,
    "get_checkpoint_config": _CHECKPOINTS,
    "enable_checkpointing": _CHECKPOINTS,
    "get_checkpoint_interval": _CHECKPOINTS,
    "get_checkpointing_mode": _CHECKPOINTS,
    "get_checkpointing_consistency_mode": _CHECKPOINTS,
    "is_unaligned_checkpoints_enabled": _CHECKPOINTS,
    "is_force_unaligned_checkpoints": _CHECKPOINTS,
    "set_restart_strategy": "restarts are not supported yet: a job ends with its first failure",
    "get_restart_strategy": "restarts are not supported yet: a job ends with its first failure",
    "set_default_savepoint_directory": _SAVEPOINTS,
    "get_default_savepoint_directory": _SAVEPOINTS,
    "stop_with_savepoint": _SAVEPOINTS,
    "trigger_savepoint": _SAVEPOINTS,
    "get_accumulators": _ACCUMULATORS,
    "get_accumulator_result": _ACCUMULATORS,
    "get_all_accumulator_results": _ACCUMULATORS,
    "add_python_file": _SHIPPING,
    "set_python_requirements": _SHIPPING,
    "add_python_archive": _SHIPPING,
    "set_python_executable": _SHIPPING,
    "register_cached_file": _SHIPPING,
    "add_jars": "jars cannot be used here: nothing runs in a Java virtual machine",
    "add_classpaths": "jars cannot be used here: nothing runs in a Java virtual machine",
    "add_sink": _JAVA,
    "project": "project() is not supported yet; use map() with a function that takes the fields",
    "cache": "cached streams are not supported yet; collect the records and use from_collection()",
    "set_uid_hash": "hashes of operator ids cannot be set yet; use uid()",
}


class NotSupportedYetError(FlowletError, AttributeError):
    """PyFlink has this feature, this version has not; the message names it."""


def missing_attribute(owner: object, name: str) -> AttributeError:
    """The error for a missing attribute; names the feature if PyFlink has the attribute."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    feature = _FEATURES.get(name)
    return AttributeError(message) if feature is None else NotSupportedYetError(f"{message}: {feature}")
