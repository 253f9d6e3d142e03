"""Asks the JobManager whether a gate still reads where its producer sends to.

Side:       loop.
Why:        a gate that grants no credit may be slow, which may last for hours, or its job may be gone from where the
            producer looks.
"""

from functools import partial
from pathlib import Path
from typing import Final

from flowlet.ingest.description import GateDescription
from flowlet.ingest.errors import (
    GateAccessError,
    GateEndedError,
    GateError,
    GateLostError,
    GateNotFoundError,
    GateUnreachableError,
)
from flowlet.ingest.lookup import describe_gate, secret_of
from flowlet.rpc.requests import RpcStatusError
from netstack.log_lines import LogLines
from netstack.loop.background_call import run_in_background

_log = LogLines(__name__)
_TASKS_TIMEOUT_S: Final = 4.0  # the question is asked again
_TIMEOUT_S: Final = 60.0


async def why_in_vain(description: GateDescription, secret_file: Path | None = None) -> GateError | None:
    """Why waiting for credit is in vain; None: the gate's tasks run where the description says, or nobody can tell.

    Without the cluster's secret nobody can; then only heartbeats and the end of the connection tell.
    """
    try:
        secret = await run_in_background(partial(secret_of, secret_file), "secret of the cluster")
        now = await describe_gate(
            description.name, description.jobmanager, _TIMEOUT_S, secret, tasks_timeout_s=_TASKS_TIMEOUT_S
        )
    except (GateAccessError, GateUnreachableError) as error:
        _log.info("the JobManager cannot be asked why a gate grants no credit", gate=str(description), error=str(error))
        return None
    except GateNotFoundError as error:
        # Else its tasks do not all run at the moment.
        return error if isinstance(error.__cause__, RpcStatusError) else None
    except GateEndedError as error:
        return error
    if now.job_id != description.job_id:
        return GateEndedError(f"{description} has ended: its name belongs to job {now.job_name!r} ({now.job_id}) now")
    for subtask, (before, after) in enumerate(zip(description.endpoints, now.endpoints, strict=False)):
        if before != after:
            return GateLostError(
                f"subtask {subtask} of {description} runs on the TaskManager at {after.host}:{after.port} now, not at "
                f"{before.host}:{before.port}: push the partition again with a new attempt"
            )
    return None
