"""Tests of ``flowlet.jm.scheduler``: the producers of results, their readers, and their places."""

import msgspec

from flowlet.jm.scheduler import DeploymentPlan, attempt_id, new_executions
from flowlet.messages.control_messages import EdgeMessage, JobGraphMessage, RegisterTaskManager
from netstack.ids import intermediate_partition_id
from tests.flowlet.jm.scripted_task_manager import COLLECT_ID, EDGE_ID, JOB_ID, SINK_ID, SOURCE_ID, edge, word_count


def location(number: int) -> RegisterTaskManager:
    return RegisterTaskManager(f"tm-{number}", 1, "127.0.0.1", 6000 + number, number)


def plan_of(job: JobGraphMessage) -> DeploymentPlan:
    """Each subtask on the TaskManager of its number."""
    return DeploymentPlan(job, {each.attempt: location(each.subtask) for each in new_executions(job)})


def with_edges(*edges: EdgeMessage, sources: int = 2, sinks: int = 2) -> JobGraphMessage:
    return msgspec.structs.replace(word_count(sources=sources, sinks=sinks), edges=list(edges))


def test_a_task_gets_what_its_vertex_says() -> None:
    task = plan_of(word_count(sinks=2)).describe_task(SINK_ID, 1)

    assert (task.job_id, task.job_name, task.vertex_id, task.task_name) == (JOB_ID, "word count", SINK_ID, "sink")
    assert (task.subtask, task.parallelism, task.max_parallelism) == (1, 2, 128)
    assert (task.attempt, task.chain) == (attempt_id(JOB_ID, SINK_ID, 1), b"chain of sink")


def test_an_all_to_all_edge_joins_every_producer_with_every_consumer() -> None:
    """Producers make one subpartition per consumer; consumer i reads subpartition i of each."""
    plan = plan_of(with_edges(edge(EDGE_ID, SOURCE_ID, SINK_ID), sources=3, sinks=2))

    (partition,) = plan.describe_task(SOURCE_ID, 2).partitions
    (gate,) = plan.describe_task(SINK_ID, 1).gates

    assert (partition.num_subpartitions, partition.partition) == (
        2,
        intermediate_partition_id(bytes.fromhex(EDGE_ID), 2),
    )
    assert (gate.edge_id, [channel.subpartition for channel in gate.channels]) == (EDGE_ID, [1, 1, 1])
    assert [channel.producer for channel in gate.channels] == [
        attempt_id(JOB_ID, SOURCE_ID, producer) for producer in range(3)
    ]
    partitions = [intermediate_partition_id(bytes.fromhex(EDGE_ID), producer) for producer in range(3)]
    assert [channel.partition for channel in gate.channels] == partitions
    assert [(channel.tm_id, channel.port) for channel in gate.channels] == [
        ("tm-0", 6000),
        ("tm-1", 6001),
        ("tm-2", 6002),
    ]


def test_a_pointwise_edge_joins_equal_subtasks() -> None:
    plan = plan_of(with_edges(edge(EDGE_ID, SOURCE_ID, SINK_ID, is_pointwise=True)))

    (partition,) = plan.describe_task(SOURCE_ID, 1).partitions
    (gate,) = plan.describe_task(SINK_ID, 1).gates

    assert partition.num_subpartitions == 1
    assert [(channel.producer, channel.subpartition) for channel in gate.channels] == [
        (attempt_id(JOB_ID, SOURCE_ID, 1), 0)
    ]


def test_a_pointwise_edge_fans_out() -> None:
    """Each of five consumers has its own subpartition of one of two producers."""
    plan = plan_of(with_edges(edge(EDGE_ID, SOURCE_ID, SINK_ID, is_pointwise=True), sources=2, sinks=5))

    partitions = [plan.describe_task(SOURCE_ID, producer).partitions[0] for producer in range(2)]
    channels = [plan.describe_task(SINK_ID, consumer).gates[0].channels for consumer in range(5)]

    assert [partition.num_subpartitions for partition in partitions] == [3, 2]
    assert [[(channel.tm_id, channel.subpartition) for channel in gate] for gate in channels] == [
        [("tm-0", 0)], [("tm-0", 1)], [("tm-0", 2)], [("tm-1", 0)], [("tm-1", 1)]
    ]  # fmt: skip


def test_a_pointwise_edge_fans_in() -> None:
    """Each of five producers has one subpartition for one of two consumers."""
    plan = plan_of(with_edges(edge(EDGE_ID, SOURCE_ID, SINK_ID, is_pointwise=True), sources=5, sinks=2))

    partitions = [plan.describe_task(SOURCE_ID, producer).partitions[0] for producer in range(5)]
    channels = [plan.describe_task(SINK_ID, consumer).gates[0].channels for consumer in range(2)]

    assert {partition.num_subpartitions for partition in partitions} == {1}
    assert [[(channel.tm_id, channel.subpartition) for channel in gate] for gate in channels] == [
        [("tm-0", 0), ("tm-1", 0)], [("tm-2", 0), ("tm-3", 0), ("tm-4", 0)]
    ]  # fmt: skip


def test_what_the_client_reads_has_one_subpartition_per_producer() -> None:
    job = with_edges(edge(COLLECT_ID, SINK_ID, None), sinks=3)
    plan = plan_of(job)

    (partition,) = plan.describe_task(SINK_ID, 2).partitions
    channels = plan.external_channels(job.edges[0])

    assert partition.num_subpartitions == 1
    assert [(channel.producer, channel.subpartition, channel.port) for channel in channels] == [
        (attempt_id(JOB_ID, SINK_ID, producer), 0, 6000 + producer) for producer in range(3)
    ]
    assert channels[2].partition == partition.partition


def test_a_partition_carries_its_edges_settings() -> None:
    settings = msgspec.structs.replace(edge(EDGE_ID, SOURCE_ID, SINK_ID), buffer_timeout_ms=-1, partitioner=b"p")

    (partition,) = plan_of(with_edges(settings)).describe_task(SOURCE_ID, 0).partitions

    assert (partition.edge_id, partition.buffer_timeout_ms, partition.partitioner, partition.source_operator) == (
        EDGE_ID,
        -1,
        b"p",
        0,
    )


def test_gates_and_partitions_follow_the_order_of_the_edges() -> None:
    second = f"{77:032x}"
    plan = plan_of(with_edges(edge(second, SOURCE_ID, SINK_ID), edge(EDGE_ID, SOURCE_ID, SINK_ID)))

    assert [gate.edge_id for gate in plan.describe_task(SINK_ID, 0).gates] == [second, EDGE_ID]
    assert [partition.edge_id for partition in plan.describe_task(SOURCE_ID, 0).partitions] == [second, EDGE_ID]


def test_a_location_is_written_as_people_know_it() -> None:
    assert str(location(3)) == "TaskManager tm-3 (127.0.0.1:6003, pid 3)"
