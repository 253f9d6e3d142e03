"""The remote gates of a job: their addresses, their progress, and the tokens that admit producers.

Counts the partitions of one remote gate, separately for each write, and decides which write is complete.

Side:       pure.
Invariants: a write is one (job, epoch) of a producer.  A partition is counted when every subtask of the gate has
            completed an attempt of it; several attempts count once.  A write whose job was announced counts only once
            it is committed.  An aborted write counts nothing, whatever its stragglers still complete.  What is counted
            holds for one run of the job.
Rules:      remembers ``MAX_REMEMBERED`` partitions, or two writes of the size that the gate waits for; the oldest are
            forgotten first.  Each ``gate_document`` has a fresh token, valid for ``TOKEN_LIFETIME_MS``; blobs are
            passed on unopened.
Units:      milliseconds since the epoch.
"""

import base64
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, NewType

import msgspec

from flowlet.errors import FlowletError, StateRestoreError
from flowlet.jm.job_document import Document
from flowlet.messages import control_messages as messages
from flowlet.messages.job_messages import JobGraphMessage, RemoteGateMessage, VertexMessage
from netstack.late import dataclass
from netstack.wire.offer_messages import GateIdentity, gate_token

if TYPE_CHECKING:
    from flowlet.jm.job_master import JobMaster

# Bounded, because a gate may live for ever.  About 15 MB when full; not measured.
MAX_REMEMBERED: Final = 65_536

_Subtasks = NewType("_Subtasks", int)  # a bit for each subtask


class WriteError(FlowletError):
    """A write cannot be committed; the message says why and what to do."""

    http_status = 409


class WriteState(msgspec.Struct, frozen=True):
    """The report of a producer's driver about one write: committed, or aborted."""

    job: str
    epoch: int
    num_committed: int | None
    is_aborted: bool


class WritesState(msgspec.Struct, frozen=True):
    """The reports of producers' drivers: the part of ``JobGate`` that checkpoints hold."""

    announced: list[str]
    writes: list[WriteState]


@dataclass(slots=True)
class _Write:
    """The partitions of one write; ``completed_by``: the subtasks that have completed each, the oldest
    partition first.
    """

    completed_by: dict[int, _Subtasks] = field(default_factory=dict)
    num_counted: int = 0
    num_committed: int | None = None
    is_aborted: bool = False


# A producer that knows the cluster's secret can fetch a new token when this one expires; one that was handed only a
# token cannot.
TOKEN_LIFETIME_MS: Final = 24 * 3600 * 1000
_STATE_VERSION: Final = 1


class GateState(msgspec.Struct, frozen=True):
    """The JobManager's part of a gate in a checkpoint; the gate's subtasks have the counted partitions in theirs."""

    version: int
    is_told_to_finish: bool
    writes: WritesState


_state_decoder: Final = msgspec.msgpack.Decoder(GateState)


def gate_names(job: JobGraphMessage) -> list[str]:
    """List the names of all gates of a job."""
    return [vertex.remote_gate.name for vertex in job.vertices if vertex.remote_gate is not None]


class JobGate:
    """Counts the partitions of one remote gate of a job for each write, and decides when the gate ends.

    All its subtasks end together: a partition of a producer may need any of them.  ``gate.producers``: how many
    partitions of one write end it, None: no number does.

    Threading: one thread.
    """

    def __init__(self, vertex: VertexMessage, gate: RemoteGateMessage) -> None:
        self.vertex_id = vertex.id
        self.gate = gate
        self.is_finishing = False  # it takes no more producers: it is told to finish, or complete in this run
        self._is_told = False  # to finish, by people
        self._counts = [messages.GateCounts()] * vertex.parallelism
        self._all_subtasks = (1 << vertex.parallelism) - 1
        self._writes: OrderedDict[tuple[str, int], _Write] = OrderedDict()
        self._announced: OrderedDict[str, None] = OrderedDict()
        self._num_remembered = 0  # partitions

    def __repr__(self) -> str:
        counted = f"{len(self._writes)} writes, {self.num_counted} of {self.gate.producers} partitions"
        return f"<JobGate {self.gate.name!r}, {counted}{', finishing' if self.is_finishing else ''}>"

    def report(self, subtask: int, counts: messages.GateCounts, completed: Sequence[messages.CountedPartition]) -> bool:
        """Record a subtask's counts and the partitions that it completed; True if the gate ends now, for the first
        time.
        """
        self._counts[subtask] = counts
        is_complete = [self.complete(subtask, partition) for partition in completed]
        return any(is_complete) and self.finish()

    def finish(self) -> bool:
        """Mark the gate as finishing; True if it was not before."""
        is_news = not self.is_finishing
        self.is_finishing = True
        return is_news

    def request_finish(self) -> bool:
        """Mark the gate as finishing, in later runs, too; True if it was not before."""
        self._is_told = True
        return self.finish()

    def begin_run(self) -> None:
        """Forget all counts, and keep the reports of drivers: the subtasks of a new run tell which partitions they
        have.
        """
        self._counts = [messages.GateCounts()] * len(self._counts)
        for key, write in list(self._writes.items()):
            write.completed_by = {}
            write.num_counted = 0
            # Nobody has reported about it: the subtasks tell its partitions anew.
            if write.num_committed is None and not write.is_aborted:
                del self._writes[key]
        self._num_remembered = 0
        self.is_finishing = self._is_told

    def snapshot(self) -> bytes:
        """Serialize the gate's state for a checkpoint that is triggered now: the reports of people and drivers."""
        # Not the counts: the subtasks have those in their own states, of the very same barrier.
        said = [
            WriteState(*key, write.num_committed, write.is_aborted)
            for key, write in self._writes.items()
            if write.is_aborted or write.num_committed is not None
        ]
        state = GateState(_STATE_VERSION, self._is_told, WritesState(list(self._announced), said))
        return msgspec.msgpack.encode(state)

    def restore(self, state: bytes) -> None:
        """Take over the state that ``snapshot`` made.  Raises StateRestoreError: it cannot be read."""
        try:
            found: GateState = _state_decoder.decode(state)
        except msgspec.MsgspecError as error:
            raise StateRestoreError(
                f"the state of the gate of vertex {self.vertex_id} in a checkpoint cannot be read: {error}"
            ) from error
        if found.version != _STATE_VERSION:
            raise StateRestoreError(
                f"the state of a gate has version {found.version}, this flowlet reads {_STATE_VERSION}"
            )
        self._announced |= dict.fromkeys(found.writes.announced)
        for each in found.writes.writes:
            self._writes[each.job, each.epoch] = _Write(num_committed=each.num_committed, is_aborted=each.is_aborted)
        if found.is_told_to_finish:
            self.request_finish()

    def document(self) -> Document:
        """Describe the gate for people, with the counts of its subtasks."""
        return {
            "name": self.gate.name,
            "producers": self.gate.producers,
            "type": self.gate.type_name,
            "is-finishing": self.is_finishing,
            "completed": self.num_counted,
            "subtasks": [msgspec.to_builtins(each) for each in self._counts],
        }

    @property
    def num_counted(self) -> int:
        """The number of counted partitions of the write that has most of them."""
        return max((write.num_counted for write in self._writes.values()), default=0)

    def announce(self, job: str) -> None:
        """Note that writes of ``job`` count only once they are committed."""
        self._announced[job] = None
        # The oldest job is forgotten: as many others were announced since.
        if len(self._announced) > MAX_REMEMBERED:
            self._announced.popitem(last=False)

    def complete(self, subtask: int, partition: messages.CountedPartition) -> bool:
        """Count a partition that a subtask has completed; True if its write is complete now."""
        write = self._write(partition.job, partition.epoch)
        # Its driver has said that none of it counts; tasks that were late still complete partitions.
        if write.is_aborted:
            return False
        if partition.partition not in write.completed_by:
            self._num_remembered += 1
        before = write.completed_by.get(partition.partition, 0)
        # A bit, not a number: a subtask may report a partition again after a restart, and counts once.
        after = _Subtasks(before | 1 << subtask)
        write.completed_by[partition.partition] = after
        # Once: when the last subtask has completed it.
        write.num_counted += before != after == self._all_subtasks
        self._forget_oldest()
        return self._is_complete(partition.job, write)

    def commit(self, job: str, epoch: int, num_partitions: int) -> bool:
        """Commit a write of ``num_partitions`` partitions; True if it is complete now.  May be repeated.

        Raises:
            WriteError: it was aborted, or the gate waits for another number of partitions.
        """
        write = self._write(job, epoch)
        if write.is_aborted:
            raise WriteError(f"write {job!r} (epoch {epoch}) was aborted before: write again, as a new job")
        if self.gate.producers is not None and num_partitions != self.gate.producers:
            raise WriteError(
                f"write {job!r} (epoch {epoch}) has {num_partitions} partitions, but the gate waits for a write of "
                f"{self.gate.producers}, so it does not end the gate, although its records were processed: use "
                f"producers={num_partitions} in from_remote_gate, repartition({self.gate.producers}) in Spark, or no "
                "producers= and finish_gate"
            )
        # Behind the checks: a commit that is refused changes nothing.
        write.num_committed = num_partitions
        return self._is_complete(job, write)

    def abort(self, job: str, epoch: int) -> None:
        """Count nothing of this write, now or later; does nothing if it is committed."""
        write = self._write(job, epoch)
        # A commit was answered: what it promised stays.
        if write.num_committed is None:
            self._num_remembered -= len(write.completed_by)
            # Remembered: its stragglers may still complete partitions.
            self._writes[job, epoch] = _Write(is_aborted=True)

    def is_counted(self, partition: messages.CountedPartition) -> bool:
        """Whether every subtask has completed this partition."""
        write = self._writes.get((partition.job, partition.epoch))
        return write is not None and write.completed_by.get(partition.partition) == self._all_subtasks

    def _write(self, job: str, epoch: int) -> _Write:
        write = self._writes.setdefault((job, epoch), _Write())
        if len(self._writes) > MAX_REMEMBERED:
            self._num_remembered -= len(self._writes.popitem(last=False)[1].completed_by)
        return write

    def _is_complete(self, job: str, write: _Write) -> bool:
        wanted = self.gate.producers
        if wanted is None or write.num_counted < wanted:
            return False
        # A driver that announced its job may still abort it: partitions alone do not end the gate.
        return write.num_committed is not None or job not in self._announced

    def _forget_oldest(self) -> None:
        while self._num_remembered > max(MAX_REMEMBERED, 2 * (self.gate.producers or 0)):
            oldest = next(iter(self._writes.values()))
            if oldest.completed_by:
                partition = next(iter(oldest.completed_by))
                # A forgotten partition no longer counts: the number is that of the remembered ones.
                oldest.num_counted -= oldest.completed_by.pop(partition) == self._all_subtasks
                self._num_remembered -= 1
            if not oldest.completed_by:
                self._writes.popitem(last=False)


def gate_document(
    job: JobGraphMessage,
    gate: RemoteGateMessage,
    places: Sequence[Document],
    secret: bytes,
    now_ms: int,
) -> Document:
    """Describe everything that a producer needs to offer partitions to a gate; ``places``: the address
    of each subtask.
    """
    # A fresh one for each question: the token that another producer has stays good.
    identity = GateIdentity(bytes.fromhex(job.job_id), gate.name, now_ms + TOKEN_LIFETIME_MS)
    return {
        "name": gate.name,
        "job_id": job.job_id,
        "job_name": job.name,
        "type": gate.type_name,
        "fingerprint": gate.fingerprint.hex(),
        "type_blob": base64.b64encode(gate.type_blob).decode(),
        "key_blob": base64.b64encode(gate.key_blob).decode(),
        "producers": gate.producers,
        "has_checkpoints": job.settings.takes_checkpoints,
        "acknowledges_checkpointed": job.settings.acknowledges_checkpointed,
        "endpoints": places,
        "expires_ms": identity.expires_ms,
        "token": gate_token(secret, identity).hex(),
    }


def gate_places(master: "JobMaster", gate: JobGate) -> list[Document]:
    """Return the data addresses of the subtasks of a gate of a job that has been started."""
    locations = [master.locations[each.attempt] for each in master.graph.executions_of(gate.vertex_id)]
    return [{"host": each.data_host, "port": each.data_port} for each in locations]
