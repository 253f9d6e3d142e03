"""The surroundings of a ``JobMaster`` in its tests: TaskManagers and an owner that only take notes."""

import asyncio

from flowlet.checkpoint.jobmanager.job_store import JobKeeper
from flowlet.jm.dispatcher import Dispatcher
from flowlet.jm.job_master import JobMaster
from flowlet.messages import control_messages as messages
from netstack.loop.background_call import call_in_background
from tests.waiting import PATIENCE_S

PLACE = messages.RegisterTaskManager("tm-1", 1, "127.0.0.1", 6000, 42)


class Recorder(Dispatcher):
    """An owner that notes the messages that it gets, and those that it is to send."""

    def __init__(self) -> None:
        self.keeper = JobKeeper(None, call_in_background)
        self.sent: list[type] = []  # the kinds of all messages
        self.deployed: list[messages.TaskDeploymentDescriptor] = []
        self.cancelled: list[bytes] = []
        self.allowed: list[tuple[bytes, int]] = []
        self.released: list[bytes] = []  # attempts whose results are not needed any more
        self.finished_gates: list[bytes] = []
        self.splits: list[tuple[bytes, list[str], int]] = []
        self.marks: list[messages.MarkOrder] = []
        self.checkpoint_orders: list[messages.CheckpointOrder] = []
        self.slots: list[str] = []
        self.was_told = asyncio.Event()
        self.ended: list[tuple[JobMaster, int]] = []  # and how many cancels had been sent by then

    async def told(self) -> None:
        """Wait until a source has been told something."""
        async with asyncio.timeout(PATIENCE_S):
            await self.was_told.wait()

    def send(self, tm_id: str, message: messages.ToTaskManager) -> None:
        assert tm_id == "tm-1"
        self.sent.append(type(message))
        match message:
            case messages.TaskDeploymentDescriptor() as task:
                self.deployed.append(task)
            case messages.CancelTask(attempt=attempt):
                self.cancelled.append(attempt)
            case messages.ReleaseResults(attempt=attempt):
                self.released.append(attempt)
            case messages.FinishGate(attempt=attempt):
                self.finished_gates.append(attempt)
            case messages.AddSplits(attempt=attempt, splits=splits, waiting_bytes=waiting_bytes):
                self.splits.append((attempt, [split.split_id for split in splits], waiting_bytes))
                self.was_told.set()
            case messages.NoMoreSplits(attempt=attempt):
                self.splits.append((attempt, [], 0))
                self.was_told.set()
            case messages.AllowSourceWatermark(attempt=attempt, max_allowed=max_allowed):
                self.allowed.append((attempt, max_allowed))
                self.was_told.set()
            case messages.EmitMark() | messages.MarkCompleted():
                self.marks.append(message)
            case messages.TriggerCheckpoint() | messages.CheckpointCompleted() | messages.CheckpointAborted():
                self.checkpoint_orders.append(message)
            case _:
                raise AssertionError(message)

    def request_slots(self, master: JobMaster) -> None:
        self.slots.append("requested")

    def release_slots(self, master: JobMaster) -> None:
        self.slots.append("released")

    def job_ended(self, master: JobMaster) -> None:
        self.ended.append((master, len(self.cancelled)))
        master.end_kept()
