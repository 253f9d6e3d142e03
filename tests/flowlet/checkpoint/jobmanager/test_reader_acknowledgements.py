"""A task's part of a checkpoint counts once the client has read the records that the task sent before the barrier."""

from flowlet.checkpoint.jobmanager.coordinator_events import MAX_HELD, ReaderAcknowledgements
from flowlet.messages.control_messages import CheckpointAcknowledged, CheckpointDeclined, TaskMetrics
from flowlet.messages.job_messages import SubtaskEntry

A, B = b"a" * 16, b"b" * 16


def acknowledged(checkpoint_id: int, attempt: bytes = A) -> CheckpointAcknowledged:
    return CheckpointAcknowledged(attempt, checkpoint_id, SubtaskEntry("v", 0))


def test_an_acknowledgement_is_held_until_the_barrier_was_read() -> None:
    held = ReaderAcknowledgements({A: ["e"]})

    assert not held.reported("tm", acknowledged(1))
    assert held.barrier_read("e", A, 1) == [("tm", acknowledged(1))]
    assert held.barrier_read("e", A, 1) == []


def test_an_acknowledgement_after_the_barrier_was_read_counts_at_once() -> None:
    held = ReaderAcknowledgements({A: ["e"]})

    assert held.barrier_read("e", A, 2) == []
    assert held.reported("tm", acknowledged(2))
    assert not held.reported("tm", acknowledged(3))


def test_a_report_stands_for_the_earlier_barriers_and_never_goes_back() -> None:
    held = ReaderAcknowledgements({A: ["e"]})
    held.reported("tm", acknowledged(2))
    held.reported("tm", acknowledged(1))
    held.reported("tm", acknowledged(4))

    assert held.barrier_read("e", A, 3) == [("tm", acknowledged(1)), ("tm", acknowledged(2))]
    held.barrier_read("e", A, 1)
    assert held.reported("tm", acknowledged(3))


def test_all_readers_of_a_task_must_have_read_so_far() -> None:
    held = ReaderAcknowledgements({A: ["e", "f"]})
    held.reported("tm", acknowledged(1))

    assert held.barrier_read("e", A, 1) == []
    assert held.barrier_read("f", A, 1) == [("tm", acknowledged(1))]


def test_each_producer_of_an_edge_has_its_own_barrier() -> None:
    held = ReaderAcknowledgements({A: ["e"], B: ["e"]})
    held.reported("tm a", acknowledged(1, A))
    held.reported("tm b", acknowledged(1, B))

    assert held.barrier_read("e", B, 1) == [("tm b", acknowledged(1, B))]


def test_tasks_that_no_client_reads_count_at_once_and_so_does_a_refusal() -> None:
    held = ReaderAcknowledgements({A: ["e"], B: []})

    assert held.reported("tm", acknowledged(1, B))
    assert held.reported("tm", CheckpointDeclined(A, 1, "CHECKPOINT_ASYNC_EXCEPTION", "disk full"))


def test_reports_about_other_runs_and_edges_do_nothing() -> None:
    held = ReaderAcknowledgements({A: ["e"]})
    held.reported("tm", acknowledged(1))

    assert held.barrier_read("f", A, 1) == []
    assert held.barrier_read("e", B, 1) == []
    assert held.reported("tm", acknowledged(1, B))


def test_the_oldest_of_many_is_dropped() -> None:
    held = ReaderAcknowledgements({A: ["e"]})
    for checkpoint_id in range(MAX_HELD + 1):
        held.reported("tm", acknowledged(checkpoint_id))

    assert [message.checkpoint_id for _, message in held.barrier_read("e", A, 100)] == list(range(1, MAX_HELD + 1))


def test_what_waits_for_the_client() -> None:
    """Acknowledgements that are held, and tasks without room that feed nothing else."""
    held = ReaderAcknowledgements({A: ["e"], B: ["e"]}, only_external=[A])
    held.reported("tm", acknowledged(1))
    held.reported("tm", acknowledged(2, B))
    no_room = TaskMetrics(is_back_pressured=True)

    found = held.lag({A: no_room, B: no_room})

    assert found == (frozenset({(1, A), (2, B)}), frozenset({A}))
    assert held.lag({A: TaskMetrics()})[1] == held.lag({})[1] == frozenset()
