"""The plan of one run: options of the job, and the faults, all drawn from its seed.

Side:       pure.
Invariants: one seed gives one plan.  Runs whose seeds differ in their last digit only share a cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from tests.chaos.link_plan import Direction, LinkFault, LinkFaultKind

RUNS_PER_CLUSTER: Final = 10
NUM_TASK_MANAGERS: Final = 3
SLOTS: Final = 2
_SEGMENT_BYTES: Final = (256, 512, 1024, 4096)


class Harm(Enum):
    NONE = "the job goes on"
    CHECKPOINTS = "checkpoints may fail"
    RESTART = "the job starts again from its newest checkpoint"


class FaultKind(Enum):
    """A kind of fault: its name, its effect on the job, and how often it is drawn."""

    KILL_TM = "kill -9 of a TaskManager", Harm.RESTART, 3
    KILL_TM_IN_SNAPSHOT = "a TaskManager dies while a task takes its snapshot", Harm.RESTART, 2
    KILL_TM_IN_NOTIFY = "a TaskManager dies when it hears that a checkpoint is complete", Harm.RESTART, 2
    KILL_TM_IN_RESTORE = "a TaskManager dies, and another one during the restore", Harm.RESTART, 2
    KILL_TM_TWICE = "two TaskManagers die, one after the other", Harm.RESTART, 1
    KILL_JM = "kill -9 of the JobManager", Harm.RESTART, 3
    KILL_JM_AND_TM = "kill -9 of the JobManager and of a TaskManager", Harm.RESTART, 1
    STOP_TM = "SIGSTOP of a TaskManager, then SIGCONT", Harm.NONE, 2
    ZOMBIE_TM = "SIGSTOP of a TaskManager until it counts as lost, then SIGCONT", Harm.RESTART, 0.2
    DISK_FULL = "the disk of the checkpoints is full for a moment", Harm.CHECKPOINTS, 2
    DAMAGE_OLD = "a file of an older checkpoint is damaged", Harm.NONE, 1
    DAMAGE_UNFINISHED = "a file of a checkpoint that is being written is cut off", Harm.CHECKPOINTS, 1
    RAISE_IN_FUNCTION = "a user's function raises once", Harm.RESTART, 1
    RAISE_IN_TIMER = "a timer raises once", Harm.RESTART, 1
    RAISE_IN_SNAPSHOT = "snapshot_state raises once", Harm.RESTART, 1
    RAISE_IN_RESTORE = "a TaskManager dies, and initialize_state raises once", Harm.RESTART, 1
    READER_PAUSES = "the client does not read its results for a moment", Harm.NONE, 1
    DATA_DELAY = "a data connection is slow", Harm.NONE, 1
    DATA_HOLD = "a data connection stands still in one direction for a moment", Harm.NONE, 1
    DATA_CUT = "a data connection is cut in the middle of a frame", Harm.RESTART, 2
    DATA_RESET = "a data connection is reset in the middle of a frame", Harm.RESTART, 2
    DATA_DUPLICATE = "bytes of a data connection come twice", Harm.RESTART, 1
    DATA_FLIP = "a bit of a data connection flips", Harm.RESTART, 2
    CONTROL_DELAY = "a control connection is slow", Harm.NONE, 1
    CONTROL_HOLD = "a control connection stands still in one direction for a moment", Harm.NONE, 1
    CONTROL_CUT = "a control connection is cut in the middle of a message", Harm.RESTART, 1
    CONTROL_RESET = "a control connection is reset in the middle of a message", Harm.RESTART, 1
    CONTROL_DUPLICATE = "bytes of a control connection come twice", Harm.RESTART, 1
    CONTROL_FLIP = "a bit of a control connection flips", Harm.RESTART, 1

    def __init__(self, text: str, harm: Harm, weight: float) -> None:
        self.text = text
        self.harm = harm
        self.weight = weight

    @property
    def link_fault(self) -> LinkFaultKind | None:
        """The fault of the link, or None if the proxy does not make this fault."""
        where, _, kind = self.name.partition("_")
        return LinkFaultKind[kind] if where in ("DATA", "CONTROL") else None

    @property
    def is_on_control(self) -> bool:
        return self.name.startswith("CONTROL_")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault.

    ``after_checkpoints``: it comes when so many more checkpoints are complete.  ``victim``: which of the processes that
        it may meet.
    """

    kind: FaultKind
    after_checkpoints: int
    victim: int
    seconds: float
    link: LinkFault | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run: the options of its job, and its faults in their order."""

    seed: int
    parallelism: int
    options: tuple[tuple[str, str], ...]
    faults: tuple[PlannedFault, ...]
    num_hogs: int

    def __str__(self) -> str:
        options = dict(self.options)
        mode = "aligned"
        if options.get("execution.checkpointing.unaligned.enabled") == "true":
            mode = (
                "unaligned after a time"
                if "execution.checkpointing.aligned-checkpoint-timeout" in options
                else "unaligned"
            )
        back_end = options.get("state.backend.type", "hashmap")
        if options.get("execution.checkpointing.incremental") == "true":
            back_end += ", incremental"
        tolerant = options["execution.checkpointing.tolerable-failed-checkpoints"] != "0"
        return f"{mode}, {back_end}, parallelism {self.parallelism}, {'tolerant' if tolerant else 'strict'}"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The network of one cluster: small buffers, and few of them."""

    segment_bytes: int
    floating_buffers: int

    @property
    def task_manager_options(self) -> tuple[str, ...]:
        """Options for the command line of a TaskManager."""
        sizes = {"segment-size": self.segment_bytes, "exclusive-buffers": 1, "floating-buffers": self.floating_buffers}
        others = {"heartbeat-interval-s": 0.5, "heartbeat-timeout-s": 4, "network-memory": "8m", "slots": SLOTS}
        return tuple(part for name, value in (sizes | others).items() for part in (f"--{name}", str(value)))


def cluster_of(seed: int) -> int:
    """Return the number of a run's cluster: runs with one number share it."""
    return seed // RUNS_PER_CLUSTER


def plan_cluster(number: int) -> ClusterPlan:
    random = Random(f"cluster {number}")
    return ClusterPlan(random.choice(_SEGMENT_BYTES), random.randint(1, 3))


def plan_run(seed: int, *, has_small_disk: bool = True, kinds: tuple[FaultKind, ...] = tuple(FaultKind)) -> RunPlan:
    """The plan of a run: its kinds are drawn from ``kinds``; ``has_small_disk``: a file system can be mounted that gets
    full.
    """
    random = Random(f"kinds {seed}")
    drawn = random.choices(kinds, [kind.weight for kind in kinds], k=random.choice((2, 2, 2, 3)))
    if not has_small_disk:
        drawn = [FaultKind.RAISE_IN_SNAPSHOT if kind is FaultKind.DISK_FULL else kind for kind in drawn]
    return plan_faults(seed, drawn)


def plan_faults(seed: int, kinds: Sequence[FaultKind]) -> RunPlan:
    """Return the plan of a run with these faults; it does not change when kinds are added or get another weight."""
    random = Random(f"run {seed}")
    options = _options(random)
    faults = tuple(_plan_fault(kind, Random(f"fault {seed} {number} {kind.name}")) for number, kind in enumerate(kinds))
    return RunPlan(seed, random.choice((2, 2, 3)), tuple(options.items()), faults, random.choice((0, 1, 1, 2)))


def _plan_fault(kind: FaultKind, random: Random) -> PlannedFault:
    seconds = {FaultKind.ZOMBIE_TM: 9.5}.get(kind, random.uniform(0.3, 1.2))
    link = None
    if (link_fault := kind.link_fault) is not None:
        directions: tuple[Direction, ...] = ("to server", "to client")
        link = LinkFault(link_fault, random.choice(directions), random.randrange(6), random.randrange(60), seconds)
    return PlannedFault(kind, random.choice((1, 1, 2)), random.randrange(1000), seconds, link)


def _options(random: Random) -> dict[str, str]:
    options = {
        "execution.checkpointing.interval": f"{random.choice((100, 150, 250))} ms",
        "execution.checkpointing.num-retained": "3",
        "execution.checkpointing.tolerable-failed-checkpoints": random.choice(("0", "1000")),
        "execution.buffer-timeout.interval": random.choice(("0 ms", "5 ms", "20 ms")),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000",
        "restart-strategy.fixed-delay.delay": "50 ms",
    }
    mode = random.choice(("aligned", "unaligned", "timeout"))
    if mode != "aligned":
        options["execution.checkpointing.unaligned.enabled"] = "true"
    if mode == "timeout":
        options["execution.checkpointing.aligned-checkpoint-timeout"] = random.choice(("20 ms", "60 ms"))
    back_end = random.choice(("hashmap", "hashmap", "rocksdb", "incremental"))
    if back_end != "hashmap":
        options["state.backend.type"] = "rocksdb"
    if back_end == "incremental":
        options["execution.checkpointing.incremental"] = "true"
    return options
