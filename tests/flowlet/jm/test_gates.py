"""The ends of a job's gates, and the messages about them to producers."""

import base64

import msgspec
import pytest

from flowlet.errors import StateRestoreError
from flowlet.jm.gates import TOKEN_LIFETIME_MS, GateState, JobGate, WritesState, gate_document, gate_names
from flowlet.jm.job_document import Document
from flowlet.messages.control_messages import (
    CountedPartition,
    GateCounts,
    JobGraphMessage,
    RemoteGateMessage,
    VertexMessage,
)
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


def test_a_gate_ends_once_when_its_write_is_committed() -> None:
    gate = gate_of()
    gate.writes.announce("job")
    for subtask in range(2):
        assert not report(gate, subtask, 0, 1)

    assert gate.writes.commit("job", 0, 2)
    assert gate.finish()
    assert not gate.finish()


def test_a_gate_without_a_number_ends_when_it_is_told_to() -> None:
    gate = gate_of(RemoteGateMessage("clicks", "Long", b"F" * 16, b""))

    for subtask in range(2):
        assert not report(gate, subtask, *range(1_000))
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


def test_a_gate_that_was_told_to_finish_stays_so_in_later_runs_and_one_that_was_complete_does_not() -> None:
    """The new run's subtasks say whether the gate is complete; another JobManager goes by its checkpoint."""
    told, complete = gate_of(), gate_of()
    told.request_finish()
    for subtask in range(2):
        report(complete, subtask, 0, 1)
    restored = gate_of()
    restored.restore(told.snapshot())

    for gate in (told, complete):
        gate.begin_run()

    assert [each.is_finishing for each in (told, complete, restored)] == [True, False, True]
    assert not report(complete, 0, 0, 1)
    assert report(complete, 1, 0, 1)


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
