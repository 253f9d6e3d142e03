"""What stands around a ``JobMaster`` in its tests: TaskManagers and an owner that only take notes."""

import asyncio
from collections.abc import Callable, Sequence

from flowlet.jm.deployment_plan import TaskManagerLocation
from flowlet.jm.job_master import JobMaster
from flowlet.rpc.control_messages import CheckpointOrder, MarkOrder, TaskDeploymentDescriptor
from flowlet.splits.split_kinds import AnySplit

PLACE = TaskManagerLocation("tm-1", "127.0.0.1", 6000, 42)


class Recorder:
    """A gateway that notes what it is told, and the owner that is told of the end."""

    def __init__(self) -> None:
        self.deployed: list[TaskDeploymentDescriptor] = []
        self.cancelled: list[bytes] = []
        self.allowed: list[tuple[bytes, int]] = []
        self.released: list[bytes] = []  # attempts whose results are not needed any more
        self.finished_gates: list[bytes] = []
        self.splits: list[tuple[bytes, list[str], int]] = []
        self.marks: list[MarkOrder] = []
        self.checkpoint_orders: list[CheckpointOrder] = []
        self.slots: list[str] = []
        self.was_told = asyncio.Event()
        self.ended: list[tuple[JobMaster, int]] = []  # and how many cancels had been sent by then

    def deploy(self, tm_id: str, task: TaskDeploymentDescriptor) -> None:
        assert tm_id == "tm-1"
        self.deployed.append(task)

    def cancel(self, tm_id: str, attempt: bytes) -> None:
        assert tm_id == "tm-1"
        self.cancelled.append(attempt)

    def finish_gate(self, tm_id: str, attempt: bytes) -> None:
        assert tm_id == "tm-1"
        self.finished_gates.append(attempt)

    def add_splits(self, tm_id: str, attempt: bytes, splits: Sequence[AnySplit], waiting_bytes: int) -> None:
        assert tm_id == "tm-1"
        self.splits.append((attempt, [split.split_id for split in splits], waiting_bytes))
        self.was_told.set()

    def no_more_splits(self, tm_id: str, attempt: bytes) -> None:
        assert tm_id == "tm-1"
        self.splits.append((attempt, [], 0))
        self.was_told.set()

    def release_results(self, tm_id: str, attempt: bytes) -> None:
        assert tm_id == "tm-1"
        self.released.append(attempt)

    def allow_watermark(self, tm_id: str, attempt: bytes, max_allowed: int) -> None:
        assert tm_id == "tm-1"
        self.allowed.append((attempt, max_allowed))
        self.was_told.set()

    def send_mark(self, tm_id: str, order: MarkOrder) -> None:
        assert tm_id == "tm-1"
        self.marks.append(order)

    def send_checkpoint_order(self, tm_id: str, order: CheckpointOrder) -> None:
        assert tm_id == "tm-1"
        self.checkpoint_orders.append(order)

    def request_slots(self, master: JobMaster) -> None:
        self.slots.append("requested")

    def release_slots(self, master: JobMaster) -> None:
        self.slots.append("released")

    def job_ended(self, master: JobMaster, clean_up: Callable[[], None]) -> None:
        self.ended.append((master, len(self.cancelled)))
        clean_up()

    def checkpoint_completed(self, master: JobMaster) -> None:
        pass

    def may_trigger(self, master: JobMaster, checkpoint_id: int) -> bool:
        return True
