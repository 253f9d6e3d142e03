"""When the gates of a job end, and what producers are told of them."""

import base64

from flowlet.jm.deployment_plan import TaskManagerLocation
from flowlet.jm.gates import TOKEN_LIFETIME_MS, GateEnd, gate_document, gate_names, gate_vertex
from flowlet.rpc.control_messages import GateCounts, JobGraphMessage, RemoteGateMessage, VertexMessage
from netstack.wire.gate_access import GateIdentity, gate_token

SECRET = b"s" * 32
GATE = RemoteGateMessage("clicks", "Long", b"F" * 16, b"type", b"key", 2)


def job_with(*gates: RemoteGateMessage | None) -> JobGraphMessage:
    vertices = [
        VertexMessage(f"{number:032x}", f"vertex {number}", 2, 128, "default", ["operator"], b"chain", remote_gate=gate)
        for number, gate in enumerate(gates)
    ]
    return JobGraphMessage("ab" * 16, "a job", vertices, [])


VERTEX = f"{0:032x}"


def test_a_gate_ends_when_its_slowest_subtask_has_all_partitions() -> None:
    """Once: what is reported later is no news."""
    end = GateEnd(job_with(GATE, None))

    assert not end.report(VERTEX, 0, GateCounts(num_completed=2))
    assert not end.report(VERTEX, 1, GateCounts(num_completed=1, num_aborted=5))
    assert end.report(VERTEX, 1, GateCounts(num_completed=2))
    assert not end.report(VERTEX, 1, GateCounts(num_completed=3))
    assert not end.finish(VERTEX)


def test_a_gate_without_a_number_ends_when_it_is_told_to() -> None:
    end = GateEnd(job_with(RemoteGateMessage("clicks", "Long", b"F" * 16, b"")))

    for subtask in range(2):
        assert not end.report(VERTEX, subtask, GateCounts(num_completed=1_000))
    assert end.finish(VERTEX)
    assert not end.finish(VERTEX)


def test_what_is_no_gate_reports_nothing() -> None:
    assert not GateEnd(job_with(None)).report(VERTEX, 0, GateCounts(num_completed=9))
    assert GateEnd(job_with(None)).documents() == []


def test_the_document_counts_what_every_subtask_has() -> None:
    end = GateEnd(job_with(GATE))
    end.report(VERTEX, 0, GateCounts(1, 2, 3, 4))

    [document] = end.documents()

    assert document["completed"] == 0
    assert document["subtasks"] == [
        {"num_open": 1, "num_completed": 2, "num_aborted": 3, "num_refused": 4},
        {"num_open": 0, "num_completed": 0, "num_aborted": 0, "num_refused": 0},
    ]


def test_a_producer_is_told_where_the_subtasks_are_and_gets_a_token_for_this_gate() -> None:
    """And nothing that the secret could be found from."""
    job = job_with(None, GATE)
    vertex = gate_vertex(job, "clicks")
    assert vertex is not None
    places = [TaskManagerLocation(f"tm-{number}", "127.0.0.1", 6000 + number, 1) for number in range(2)]

    document = gate_document(job, GATE, places, SECRET, 1_000)

    assert (gate_names(job), gate_vertex(job, "other"), vertex.name) == (["clicks"], None, "vertex 1")
    assert document["endpoints"] == [{"host": "127.0.0.1", "port": 6000}, {"host": "127.0.0.1", "port": 6001}]
    assert document["expires_ms"] == 1_000 + TOKEN_LIFETIME_MS
    identity = GateIdentity(bytes.fromhex(job.job_id), "clicks", 1_000 + TOKEN_LIFETIME_MS)
    assert document["token"] == gate_token(SECRET, identity).hex()
    assert base64.b64decode(str(document["key_blob"])) == b"key"
