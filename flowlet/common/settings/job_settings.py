"""``JobSettings``: what a job decides for all of its tasks.

Side: pure.
"""

from dataclasses import field
from typing import Final

from flowlet.common.settings.batch_settings import BatchSettings
from flowlet.common.settings.checkpoint_settings import CheckpointSettings
from flowlet.common.settings.gate_settings import Acknowledge, GateSettings
from flowlet.common.settings.restart_settings import RestartSettings
from flowlet.common.settings.state_settings import StateSettings
from flowlet.errors import JobGraphError
from netstack.late import dataclass

CANCELLATION_INTERVAL_OPTION: Final = "task.cancellation.interval"
CANCELLATION_TIMEOUT_OPTION: Final = "task.cancellation.timeout"
MAX_RECORD_BYTES_OPTION: Final = "flowlet.max-record-bytes"
DEFAULT_CANCELLATION_INTERVAL_MS: Final = 30_000  # Flink's
DEFAULT_CANCELLATION_TIMEOUT_MS: Final = 180_000  # Flink's
DEFAULT_MAX_RECORD_BYTES: Final = 64 << 20
LARGEST_MAX_RECORD_BYTES: Final = 2**31 - 1  # the length of an element is an i32
_LOWEST: Final = {"cancellation_interval_ms": 1, "cancellation_timeout_ms": 0, "max_record_bytes": 1}


@dataclass(frozen=True, slots=True)
class JobSettings:
    """None leaves a setting to the TaskManager; times in milliseconds.

    ``cancellation_interval_ms``: between reports of a cancelled task that does not end.  ``cancellation_timeout_ms``:
    after it the TaskManager ends itself; 0: never.  ``max_record_bytes``: the largest stream element that this job's
    tasks exchange.  ``recovery_path``: the checkpoint of another job that this one starts from; empty: none.
    ``ignores_unclaimed_state``: that checkpoint may have state of operators that this job does not have.
    ``parameters``: the user's, by name, which all functions can read.

    Raises:
        JobGraphError: a number is out of range.
    """

    cancellation_interval_ms: int | None = None
    cancellation_timeout_ms: int | None = None
    max_record_bytes: int | None = None
    checkpoints: CheckpointSettings | None = None  # None: the job takes none
    restart: RestartSettings = field(default_factory=RestartSettings)
    recovery_path: str = ""
    ignores_unclaimed_state: bool = False
    state: StateSettings = field(default_factory=StateSettings)
    gates: GateSettings = field(default_factory=GateSettings)
    batch: BatchSettings | None = None  # None: the job is no BATCH job
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def takes_checkpoints(self) -> bool:
        """Whether checkpoints are taken by themselves; no: at most savepoints, on request."""
        return self.checkpoints is not None and self.checkpoints.is_periodic

    @property
    def acknowledges_checkpointed(self) -> bool:
        """Whether a write into a remote gate returns when a checkpoint holds its rows, not when they are processed."""
        return self.takes_checkpoints and self.gates.acknowledge is Acknowledge.CHECKPOINTED

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and not lowest <= value <= LARGEST_MAX_RECORD_BYTES:
                raise JobGraphError(f"{name} is {value}, allowed are {lowest} to {LARGEST_MAX_RECORD_BYTES}")
