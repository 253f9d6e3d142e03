"""Settings of a JobManager.

Side:   pure.
"""

from dataclasses import field, fields
from pathlib import Path

from flowlet.errors import ConfigError
from flowlet.rpc.auth import SECRET_BYTES
from flowlet.storage.manifest import manifest_key
from netstack.config import DEAD_HOST_TIMEOUT_S
from netstack.late import dataclass

_MAX_VALUE = 1_000_000_000  # about 30 years in seconds: a finite limit, because a timer cannot be set to infinity


@dataclass(frozen=True, slots=True)
class JobManagerConfig:
    """All settings of a JobManager: timeouts, and an upper limit for everything that grows."""

    secret: bytes = field(repr=False)
    checkpoint_secret: bytes | None = field(default=None, repr=False)  # for the MAC of manifests; None: ``secret``
    # Host:port of further ways to the port, such as tunnels; requests may be signed for them.
    advertised_addresses: tuple[str, ...] = ()
    slot_request_timeout_s: float = 30.0  # how long a job waits for slots; Flink's slot.request.timeout is 300 s
    # The directory of jobs that another JobManager goes on with; None: they end with this one.
    job_store: Path | None = None
    job_store_lock_s: float = 10.0  # how long a JobManager that was told to end may keep the directory
    # Flink's heartbeat.interval and heartbeat.timeout: a TaskManager is lost after this time without a message, and
    # this JobManager to it.  Long, because a function may keep the interpreter's lock: a process that died is known at
    # once by its closed connection, and a host that is gone after ``dead_host_timeout_s``.  TaskManagers report their
    # tasks' metrics more often (``jobmanager_connection``).
    heartbeat_interval_ms: int = 10_000
    heartbeat_timeout_s: float = 50.0
    dead_host_timeout_s: float = DEAD_HOST_TIMEOUT_S  # without an answer of a peer's kernel
    registration_timeout_s: float = 5.0
    proof_timeout_s: float = 5.0  # how long a connection may wait with its first signed request
    # A loop that was busy accepts a full backlog (100, or this number if it is less) at once, before it reads the first
    # request of it.
    max_unproved_connections: int = 256  # and at most a quarter of the descriptors that the process may have
    max_unproved_connections_per_host: int = 16  # from one address other than loopback
    # A client learns of a failure at most this long after it, even if a blocked user function keeps a task from ending.
    failure_grace_s: float = 1.5
    shutdown_timeout_s: float = 0.6  # how long cancelled jobs may take to end when the JobManager stops
    max_active_jobs: int = 100
    max_finished_jobs: int = 100
    max_tasks_per_job: int = 10_000
    max_task_managers: int = 1_000
    max_slots_per_task_manager: int = 1_024
    max_long_poll_ms: int = 60_000
    max_shipped_mebibytes: int = 16 * 1024  # of files that jobs ship, on disk

    @property
    def checkpoint_key(self) -> bytes:
        """The key of the MAC of manifests."""
        return manifest_key(self.checkpoint_secret or self.secret)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ConfigError(f"secret has {len(self.secret)} bytes, it must have {SECRET_BYTES}")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and not 0 < value <= _MAX_VALUE:
                raise ConfigError(f"{item.name} is {value}, it must be more than 0 and at most {_MAX_VALUE}")
        # TaskManagers report once a second, but hear of this JobManager once per interval.
        if self.heartbeat_interval_ms >= self.heartbeat_timeout_s * 1000:
            timeout = f"heartbeat_timeout_s of {self.heartbeat_timeout_s:g}"
            raise ConfigError(
                f"heartbeat_interval_ms is {self.heartbeat_interval_ms}, it must be less than the {timeout}"
            )
