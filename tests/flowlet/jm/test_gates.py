"""The ends of a job's gates, the partitions that they have counted for each write, and the messages to producers."""

import base64
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import StateRestoreError
from flowlet.jm import gates as gate_writes
from flowlet.jm.gates import (
    TOKEN_LIFETIME_MS,
    GateState,
    JobGate,
    WriteError,
    WritesState,
    gate_document,
    gate_names,
)
from flowlet.jm.job_document import Document
from flowlet.messages.control_messages import CountedPartition, GateCounts
from flowlet.messages.job_messages import JobGraphMessage, RemoteGateMessage, VertexMessage
from netstack.wire.offer_messages import GateIdentity, gate_token

SECRET = b"s" * 32
GATE = RemoteGateMessage("clicks", "Long", b"F" * 16, b"type", b"key", 2)


def job_with(*gates: RemoteGateMessage | None) -> JobGraphMessage:
    vertices = [
        VertexMessage(f"{number:032x}", f"vertex {number}", 2, 128, "default", ["operator"], b"chain", remote_gate=gate)
        for number, gate in enumerate(gates)
    ]
    return JobGraphMessage("ab" * 16, "a job", vertices, [])


def gate_of(gate: RemoteGateMessage = GATE) -> JobGate:
    return JobGate(job_with(gate).vertices[0], gate)


def report(gate: JobGate, subtask: int, *partitions: int, job: str = "job") -> bool:
    counted = [CountedPartition(job, 0, each) for each in partitions]
    return gate.report(subtask, GateCounts(num_completed=len(partitions)), counted)


def test_a_gate_ends_when_its_slowest_subtask_has_all_partitions() -> None:
    """The gate ends once: later reports are no news."""
    gate = gate_of()

    assert not report(gate, 0, 0, 1)
    assert not report(gate, 1, 0)
    assert report(gate, 1, 1)
    assert not report(gate, 1, 2)
    assert not gate.finish()


def test_a_gate_ends_once_when_its_write_is_committed_or_it_is_told_to() -> None:
    """A gate without a number of partitions only ends when it is told to."""
    counted, told = gate_of(), gate_of(RemoteGateMessage("clicks", "Long", b"F" * 16, b""))
    counted.announce("job")
    for subtask in range(2):
        assert not report(counted, subtask, 0, 1)
        assert not report(told, subtask, *range(1_000))

    assert counted.commit("job", 0, 2)
    for gate in (counted, told):
        assert gate.finish()
        assert not gate.finish()


def test_the_document_counts_what_every_subtask_has() -> None:
    gate = gate_of()
    gate.report(0, GateCounts(1, 2, 3, 4), [CountedPartition("job", 0, 0)])

    document = gate.document()

    assert document["completed"] == 0
    assert document["subtasks"] == [
        {"num_open": 1, "num_completed": 2, "num_aborted": 3, "num_refused": 4},
        {"num_open": 0, "num_completed": 0, "num_aborted": 0, "num_refused": 0},
    ]
    report(gate, 1, 0)
    assert gate.document()["completed"] == 1


def test_a_producer_is_told_where_the_subtasks_are_and_gets_a_token_for_this_gate() -> None:
    """The document holds nothing from which the secret could be found."""
    job = job_with(None, GATE)
    places: list[Document] = [{"host": "127.0.0.1", "port": 6000 + number} for number in range(2)]

    document = gate_document(job, GATE, places, SECRET, 1_000)

    assert gate_names(job) == ["clicks"]
    assert document["endpoints"] == places
    assert document["expires_ms"] == 1_000 + TOKEN_LIFETIME_MS
    identity = GateIdentity(bytes.fromhex(job.job_id), "clicks", 1_000 + TOKEN_LIFETIME_MS)
    assert document["token"] == gate_token(SECRET, identity).hex()
    assert base64.b64decode(str(document["key_blob"])) == b"key"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"", "cannot be read"),
        (msgspec.msgpack.encode([]), "cannot be read"),
        (msgspec.msgpack.encode(GateState(2, False, WritesState([], []))), "has version 2, this flowlet reads 1"),
    ],
)
def test_a_state_that_is_none_is_refused(state: bytes, message: str) -> None:
    with pytest.raises(StateRestoreError, match=message):
        gate_of().restore(state)


def writes_of(num_subtasks: int, num_wanted: int | None) -> JobGate:
    gate = msgspec.structs.replace(GATE, producers=num_wanted)
    return JobGate(msgspec.structs.replace(job_with(gate).vertices[0], parallelism=num_subtasks), gate)


def complete(writes: JobGate, partition: int, job: str = "job", *, epoch: int = 0, subtasks: int = 2) -> bool:
    """Every subtask completes it; whether that completed the write."""
    return [writes.complete(subtask, CountedPartition(job, epoch, partition)) for subtask in range(subtasks)][-1]


def test_partitions_of_two_writes_are_not_added_up() -> None:
    """A write that failed and was repeated has other names: a gate that waits for two partitions waits for two of one
    of them.
    """
    writes = writes_of(2, 2)

    assert not complete(writes, 0, "first")
    assert not complete(writes, 0, "second")
    assert not complete(writes, 0, "second", epoch=1)
    assert writes.num_counted == 1
    assert complete(writes, 1, "second")


def test_a_new_run_counts_anew_and_knows_what_drivers_have_said() -> None:
    """The run may be that of another JobManager, which begins with a checkpoint."""
    writes = writes_of(2, 1)
    writes.announce("job")
    complete(writes, 0, "other")
    writes.abort("aborted", 3)
    assert not writes.commit("job", 0, 1)

    restored = writes_of(2, 1)
    restored.restore(writes.snapshot())
    writes.begin_run()

    for each in (writes, restored):
        assert each.num_counted == 0
        assert not each.is_counted(CountedPartition("other", 0, 0))
        assert not complete(each, 0, "aborted", epoch=3)
        with pytest.raises(WriteError, match="was aborted before"):
            each.commit("aborted", 3, 1)
        assert complete(each, 0, "job")


def test_a_partition_counts_when_every_subtask_has_it_and_once() -> None:
    writes = writes_of(2, 1)
    partition = CountedPartition("job", 0, 3)

    assert not writes.complete(1, partition)
    assert not writes.complete(1, partition)
    assert not writes.is_counted(partition)
    assert writes.complete(0, partition)
    assert writes.is_counted(partition)
    assert not writes.is_counted(CountedPartition("job", 1, 3))
    assert writes.num_counted == 1


@pytest.mark.parametrize("is_commit_first", [True, False])
def test_an_announced_write_is_complete_when_it_is_committed_and_counted(is_commit_first: bool) -> None:
    """The driver may be faster than the last report, so either order will do."""
    writes = writes_of(2, 2)
    writes.announce("job")
    steps: list[Callable[[], bool]] = [lambda: complete(writes, 1), lambda: writes.commit("job", 0, 2)]
    first, last = reversed(steps) if is_commit_first else steps

    assert not complete(writes, 0)
    assert not first()
    assert last()
    assert writes.commit("job", 0, 2)


def test_an_aborted_write_counts_nothing_whatever_its_stragglers_complete() -> None:
    writes = writes_of(2, 2)
    complete(writes, 0)

    writes.abort("job", 0)

    assert not complete(writes, 0)
    assert not complete(writes, 1)
    assert not writes.is_counted(CountedPartition("job", 0, 0))
    assert writes.num_counted == 0
    with pytest.raises(WriteError, match=r"'job' \(epoch 0\) was aborted before"):
        writes.commit("job", 0, 2)


def test_a_committed_write_is_not_aborted() -> None:
    """The driver died while it heard of its commit."""
    writes = writes_of(2, 2)
    writes.commit("job", 0, 2)

    writes.abort("job", 0)

    assert not complete(writes, 0)
    assert complete(writes, 1)


def test_a_write_of_another_size_cannot_be_committed() -> None:
    writes = writes_of(2, 2)
    with pytest.raises(
        WriteError, match=r"has 3 partitions.* waits for a write of 2.*producers=3.*repartition\(2\).*finish_gate"
    ):
        writes.commit("job", 0, 3)
    assert not writes_of(2, None).commit("job", 0, 3)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions of a write, writes and announcements; the oldest are forgotten first."""
    monkeypatch.setattr(gate_writes, "MAX_REMEMBERED", 3)
    writes = writes_of(1, None)
    for number in range(5):
        complete(writes, number, "long", subtasks=1)
    are_counted = [writes.is_counted(CountedPartition("long", 0, number)) for number in range(5)]
    assert are_counted == [False, False, True, True, True]
    assert writes.num_counted == 3

    for number in range(5):
        writes.abort(f"aborted {number}", 0)
        writes.announce(f"announced {number}")
        complete(writes, 0, f"short {number}", subtasks=1)
    are_counted = [writes.is_counted(CountedPartition(f"short {number}", 0, 0)) for number in range(5)]
    assert are_counted == [False, False, False, True, True]
    assert not writes.is_counted(CountedPartition("long", 0, 4))


def test_a_large_write_is_remembered_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write of equal size before it is remembered, too; otherwise the gate would never end."""
    monkeypatch.setattr(gate_writes, "MAX_REMEMBERED", 3)
    writes = writes_of(1, 10)
    for number in range(9):
        assert not complete(writes, number, "failed", subtasks=1)

    assert [complete(writes, number, subtasks=1) for number in range(10)] == [False] * 9 + [True]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 1))))
def test_the_first_write_with_all_its_partitions_at_all_subtasks_is_complete(
    reports: list[tuple[str, int, int]],
) -> None:
    """The reports may come in any order."""
    writes = writes_of(2, 3)
    seen: set[tuple[str, int, int]] = set()
    for job, partition, subtask in reports:
        seen.add((job, partition, subtask))
        is_whole = sum(each[0] == job for each in seen) == 6

        assert writes.complete(subtask, CountedPartition(job, 0, partition)) is is_whole
