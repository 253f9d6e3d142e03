"""Tests of ``flowlet.jm.submission``: each rule broken by itself."""

from typing import Any

import msgspec
import pytest

from flowlet.common.job_settings import CheckpointSettings, JobSettings, RestartKind, RestartSettings
from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.errors import JobGraphError
from flowlet.jm import submission
from flowlet.jm.submission import check_job_graph, without_code
from flowlet.messages.job_messages import JobGraphMessage, RemoteGateMessage
from flowlet.splits.split_kinds import FileSet, HybridSplits
from tests.flowlet.jm.scripted_task_manager import EDGE_ID, SINK_ID, SOURCE_ID, edge, word_count

MAX_TASKS = 4
NO_BYTES = FileSet(("a",), split_bytes=0)


def changed(**fields: Any) -> JobGraphMessage:
    return msgspec.structs.replace(word_count(), **fields)


def with_source(**fields: Any) -> JobGraphMessage:
    source, sink = word_count().vertices
    return changed(vertices=[msgspec.structs.replace(source, **fields), sink])


def with_edge(**fields: Any) -> JobGraphMessage:
    return changed(edges=[msgspec.structs.replace(edge(EDGE_ID, SOURCE_ID, SINK_ID), **fields)])


def test_a_good_graph_passes() -> None:
    check_job_graph(word_count(sources=2, sinks=2), MAX_TASKS)
    check_job_graph(with_source(watermark_alignment=WatermarkAlignment("g", 0, 10)), MAX_TASKS)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (changed(job_id="x"), "a job id has 32 lower-case hex digits, got 'x'"),
        (changed(job_id="A" * 32), "a job id has 32"),
        (changed(name=""), "the job's name has 0 characters"),
        (changed(name="x" * 1001), "the job's name has 1001 characters"),
        (changed(vertices=[], edges=[]), "no vertices"),
        (word_count(sources=3, sinks=2), "the job has 5 tasks, the limit is 4"),
        (
            changed(vertices=[*word_count().vertices, word_count().vertices[0]]),
            f"the vertex id '{SOURCE_ID}' occurs twice",
        ),
        (with_source(id="../x"), "a vertex id has 32"),
        (with_source(name=""), "its name has 0 characters"),
        (with_source(slot_sharing_group=""), "its slot sharing group has 0 characters"),
        (with_source(split_set=NO_BYTES), "'source': its splits must have at least 1 byte, not 0"),
        (with_source(split_set=HybridSplits((NO_BYTES,))), "'source': its splits must have at least 1 byte, not 0"),
        (with_source(split_set=HybridSplits(())), "'source': a hybrid source has at least one source"),
        (with_source(parallelism=0), "'source': parallelism 0 is not within 1 to 128"),
        (with_source(max_parallelism=1, parallelism=2), "'source': parallelism 2 is not within 1 to 1"),
        (with_source(max_parallelism=0), "max parallelism 0"),
        (with_source(max_parallelism=32_769), "max parallelism 32769 is not within 1 to 32768"),
        (with_source(operator_names=[]), "0 operators"),
        (with_source(operator_names=["x"] * 1001), "1001 operators"),
        (with_source(operator_names=[""]), "an operator's name has 0 characters"),
        (
            with_source(watermark_alignment=WatermarkAlignment("", 0, 1_000)),
            "its watermark alignment group has 0 characters",
        ),
        (with_source(watermark_alignment=WatermarkAlignment("g", -1, 1_000)), "a drift of -1 ms"),
        (with_source(watermark_alignment=WatermarkAlignment("g", 0, 9)), "an update interval of 9 ms"),
        (with_source(watermark_alignment=WatermarkAlignment("g", 0, 3_600_001)), "an update interval of 3600001 ms"),
        (changed(edges=word_count().edges * 2), "occurs twice"),
        (changed(edges=word_count().edges * 5001), "10002 edges, the limit is 10000"),
        (with_edge(id="x"), "an edge id has 32"),
        (with_edge(source="x"), "its source 'x' is no vertex"),
        (with_edge(target="x"), "its target 'x' is no vertex"),
        (with_edge(source_operator=1), "'source' has no operator 1"),
        (with_edge(source_operator=-1), "'source' has no operator -1"),
        (with_edge(buffer_timeout_ms=-2), "its buffer timeout must be at least -1, it is -2 ms"),
        (with_edge(ship_strategy=""), "its ship strategy has 0 characters"),
        (with_edge(source=SINK_ID, target=SOURCE_ID), "'source' comes before 'sink'"),
        (with_edge(target=SOURCE_ID), "'source' comes before 'source'"),
        (
            msgspec.structs.replace(word_count(sinks=2), edges=[edge(EDGE_ID, SOURCE_ID, SINK_ID, is_pointwise=True)]),
            "FORWARD, but 'source' has parallelism 1 and 'sink' 2",
        ),
    ],
)
def test_a_bad_graph_is_refused_with_what_is_wrong(job: JobGraphMessage, message: str) -> None:
    with pytest.raises(JobGraphError) as caught:
        check_job_graph(job, MAX_TASKS)
    assert message in str(caught.value)


def test_code_too_large_for_one_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators and outgoing partitioners count together."""
    source = word_count().vertices[0]
    monkeypatch.setattr(submission, "MAX_CODE_BYTES_PER_VERTEX", len(source.chain) + len(b"partitioner"))

    check_job_graph(word_count(), MAX_TASKS)
    with pytest.raises(JobGraphError, match="vertex 'source': its code and data have"):
        check_job_graph(with_source(chain=source.chain + b"x"), MAX_TASKS)
    with pytest.raises(JobGraphError, match="vertex 'source': its code and data have"):
        check_job_graph(with_source(split_set=FileSet(("x",))), MAX_TASKS)


def test_a_place_that_cannot_hold_checkpoints_is_refused() -> None:
    """The JobManager trusts nothing that the client has checked."""
    job = changed(settings=JobSettings(checkpoints=CheckpointSettings(1000, "memory://x")))

    with pytest.raises(
        JobGraphError, match="checkpoints cannot be kept in 'memory://x': it is the memory of one process"
    ):
        check_job_graph(job, MAX_TASKS)


GATE = RemoteGateMessage("clicks", "str", bytes(16), b"type")
FIXED_DELAY = RestartSettings(RestartKind.FIXED_DELAY)


def test_without_checkpoints_what_producers_pushed_cannot_come_again_so_a_job_with_a_gate_does_not_restart() -> None:
    job = msgspec.structs.replace(with_source(remote_gate=GATE), settings=JobSettings(restart=FIXED_DELAY))

    with pytest.raises(JobGraphError) as caught:
        check_job_graph(job, MAX_TASKS)

    assert str(caught.value) == (
        "a job with a remote gate ('clicks') is not restarted without checkpoints: set "
        "execution.checkpointing.interval, or "
        "restart-strategy.type to none, not fixed-delay"
    )


def test_with_checkpoints_a_job_with_a_gate_may_restart() -> None:
    settings = JobSettings(checkpoints=CheckpointSettings(1000, "/tmp/checkpoints"), restart=FIXED_DELAY)

    check_job_graph(msgspec.structs.replace(with_source(remote_gate=GATE), settings=settings), MAX_TASKS)
    check_job_graph(msgspec.structs.replace(word_count(), settings=settings), MAX_TASKS)


def test_without_code_only_the_blobs_are_gone() -> None:
    stripped = without_code(with_source(split_set=FileSet(("a",))))

    assert [vertex.split_set for vertex in stripped.vertices] == [None, None]
    assert [vertex.chain for vertex in stripped.vertices] == [b"", b""]
    assert [each.partitioner for each in stripped.edges] == [b"", b""]
    assert [vertex.name for vertex in stripped.vertices] == ["source", "sink"]
    assert [(each.id, each.target) for each in stripped.edges] == [
        (each.id, each.target) for each in word_count().edges
    ]
