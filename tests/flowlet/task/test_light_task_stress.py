"""A task that runs now on the loop, now on its own thread, behind a real connection and under
constant thread switches.
"""

import random
import threading
from collections.abc import Iterator

import pytest

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail
from flowlet.records import Chunk
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import TaskEnvironment
from netstack.environment import ChannelSpec
from netstack.ids import execution_attempt_id
from tests.flowlet.task.watchdog import tiny_switch_interval, watchdog
from tests.netstack.test_environment import Node, finish, result_partition_id, small_config, start_node
from tests.stress import num_rounds

pytestmark = pytest.mark.slow

NUM_RECORDS = num_rounds(6_000)
MAX_TURNS = 3_000  # empty ones of the producer between two records: about as long as the task needs to park


class Collector(StreamOperator):
    """Notes every record, and on which threads they came; only one is inside at a time."""

    name = "collector"

    def __init__(self) -> None:
        self.values: list[int] = []
        self.num_by_thread: dict[int, int] = {}
        self.is_inside = False
        self.num_mails = 0

    def process_chunk(self, chunk: Chunk) -> None:
        assert not self.is_inside, "two threads at once"
        self.is_inside = True
        self.values += chunk.values
        thread = threading.get_ident()
        self.num_by_thread[thread] = self.num_by_thread.get(thread, 0) + len(chunk)
        self.is_inside = False

    def on_mail(self) -> None:
        assert not self.is_inside, "a mail in the middle of a record"
        self.num_mails += 1


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    with watchdog(), tiny_switch_interval():
        producer = start_node("producer", use_uvloop=request.param, config=small_config())
        consumer = start_node("consumer", use_uvloop=request.param, config=small_config())
        yield producer, consumer
        consumer.close()
        producer.close()


def consuming_task(producer: Node, consumer: Node, collector: Collector) -> StreamTask:
    gate = consumer.environment.create_input_gate("consumer", [ChannelSpec(result_partition_id(), 0, producer.address)])
    environment = TaskEnvironment(
        job_id="1" * 32,
        job_name="stress",
        vertex_id="2" * 32,
        task_name="consumer",
        subtask=0,
        parallelism=1,
        max_parallelism=128,
        attempt=execution_attempt_id(b"g" * 16, b"v" * 16, 1, 0),
        gates=[gate],
        outputs=[],
        schedule_timer=lambda _delay_s, _callback: pytest.fail("no timer is needed"),
        is_loop_thread=consumer.loop.is_current_thread,
    )
    return create_stream_task(environment, [ChainedOperator(collector, -1)])


def test_every_record_is_processed_once_and_in_order_on_two_threads(nodes: tuple[Node, Node]) -> None:
    """Mails come from a third thread meanwhile; the end of data, and everything behind it, is the own thread's."""
    producer, consumer = nodes
    collector = Collector()
    partition = producer.environment.create_result_partition("producer", result_partition_id(), 1)
    task = consuming_task(producer, consumer, collector)
    own = threading.Thread(target=task.invoke)
    num_mails = 0

    own.start()
    rng = random.Random(7)
    for number in range(NUM_RECORDS):
        partition.emit_record(bytes(StreamElementSerializer().serialize(Chunk([number]))), 0)
        if rng.random() < 0.9:
            partition.flush(0)
        if rng.random() < 0.05 and task.mailbox.try_put_threadsafe(Mail(collector.on_mail, MIN_PRIORITY, "a mail")):
            num_mails += 1
        for _ in range(rng.randrange(MAX_TURNS)):
            pass
    partition.flush(0)
    finish(partition)
    partition.close()
    own.join()

    assert collector.values == list(range(NUM_RECORDS))
    assert collector.num_mails == num_mails
    assert len(collector.num_by_thread) == 2, "both threads had some of them"
    assert task.mailbox.statistics().num_rescued_wakeups == 0
