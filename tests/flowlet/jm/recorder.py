"""The surroundings of a ``JobMaster`` in its tests: TaskManagers and an owner that only take notes."""

import asyncio

from flowlet.checkpoint.jobmanager.job_store import JobKeeper
from flowlet.jm.dispatcher import Dispatcher
from flowlet.jm.job_master import JobMaster
from flowlet.messages.control_messages import (
    AddSplits,
    AllowSourceWatermark,
    CancelTask,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOrder,
    EmitMark,
    FinishGate,
    MarkCompleted,
    MarkOrder,
    NoMoreSplits,
    RegisterTaskManager,
    ReleaseResults,
    TaskDeploymentDescriptor,
    ToTaskManager,
    TriggerCheckpoint,
)
from netstack.loop.background_call import call_in_background

PLACE = RegisterTaskManager("tm-1", 1, "127.0.0.1", 6000, 42)


class Recorder(Dispatcher):
    """An owner that notes the messages that it gets, and those that it is to send."""

    def __init__(self) -> None:
        self.keeper = JobKeeper(None, call_in_background)
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

    def send(self, tm_id: str, message: ToTaskManager) -> None:
        assert tm_id == "tm-1"
        match message:
            case TaskDeploymentDescriptor() as task:
                self.deployed.append(task)
            case CancelTask(attempt=attempt):
                self.cancelled.append(attempt)
            case ReleaseResults(attempt=attempt):
                self.released.append(attempt)
            case FinishGate(attempt=attempt):
                self.finished_gates.append(attempt)
            case AddSplits(attempt=attempt, splits=splits, waiting_bytes=waiting_bytes):
                self.splits.append((attempt, [split.split_id for split in splits], waiting_bytes))
                self.was_told.set()
            case NoMoreSplits(attempt=attempt):
                self.splits.append((attempt, [], 0))
                self.was_told.set()
            case AllowSourceWatermark(attempt=attempt, max_allowed=max_allowed):
                self.allowed.append((attempt, max_allowed))
                self.was_told.set()
            case EmitMark() | MarkCompleted():
                self.marks.append(message)
            case TriggerCheckpoint() | CheckpointCompleted() | CheckpointAborted():
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
