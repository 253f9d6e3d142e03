from collections import Counter

import pytest

from flowlet.graph.partitioner import KeyGroups
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.keyed_aggregation_operator import KeyedSumOperator
from flowlet.operators.process_operator import FlatMapOperator, MapOperator
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.records import MAX_WATERMARK
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.task_environment import OutputEdge
from tests.flowlet.task.local_network import LocalNetwork, Recorder, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, chain, parked, run, source
from tests.flowlet.task.watchdog import tiny_switch_interval


class TestPipeline:
    @pytest.mark.parametrize("num_consumers", [1, 3])
    @pytest.mark.parametrize("buffer_timeout_ms", [0, -1])
    def test_words_are_counted(
        self, network: LocalNetwork, tasks: Tasks, num_consumers: int, buffer_timeout_ms: int
    ) -> None:
        """Two sources, n consumers, more data than all buffers hold: the counts are those of a Counter."""
        lines = [f"w{number % 97} w{number % 7} w{number}" for number in range(3_000)]
        keyed = KeyGroups(lambda word: word[0])
        producers = []
        sources = []
        for half in (lines[::2], lines[1::2]):
            partition = network.partition(num_consumers, max_buffers=num_consumers + 3)
            producers.append(partition)
            split = FlatMapOperator(lambda line: [(word, 1) for word in line.split()])
            output = OutputEdge(1, partition, keyed, buffer_timeout_ms)
            sources.append(tasks.source(SourceOperator(CollectionSource(half)), split, outputs=[output]))
        recorders = [Recorder() for _ in range(num_consumers)]
        sinks = []
        for index, recorder in enumerate(recorders):
            environment = network.environment(
                "count", gates=[network.gate(*producers, subpartition=index)], subtask=index, parallelism=num_consumers
            )
            sinks.append(
                create_stream_task(environment, chain(KeyedSumOperator(lambda record: record[0], 1), recorder))
            )

        run(*sources, *sinks)

        counts: dict[str, int] = {}
        for recorder in recorders:
            owned = dict(recorder.values)
            assert not owned.keys() & counts.keys()
            counts |= owned
        assert counts == Counter(word for line in lines for word in line.split())
        assert sum(sink.metrics().num_records_in for sink in sinks) == 9_000

    def test_everything_of_a_task_happens_on_its_thread(self, network: LocalNetwork, tasks: Tasks) -> None:
        """Open, records, watermarks, finish and close."""
        partition = network.partition()
        first, second = Recorder(), Recorder()
        producer = tasks.source(source([1, 2], [3]), first, outputs=[edge(partition, source=1)])
        consumer = tasks.sink(second, producers=[partition])

        threads = run(producer, consumer)

        assert [first.threads, second.threads] == [{thread.ident} for thread in threads]
        for recorder in (first, second):
            assert recorder.calls[0] == "open"
            assert recorder.calls[-3:] == ["watermark", "finish", "close"]
            assert recorder.values == [1, 2, 3]
            assert recorder.controls == [MAX_WATERMARK]

    def test_a_task_in_the_middle_passes_everything_on(self, network: LocalNetwork, tasks: Tasks) -> None:
        """A source, a map and a sink are three tasks."""
        first, second = network.partition(), network.partition()
        recorder = Recorder()
        middle = tasks.task(
            "map", MapOperator(lambda value: value * 2), gates=[network.gate(first)], outputs=[edge(second)]
        )

        run(
            tasks.source(SourceOperator(CollectionSource(range(10_000))), outputs=[edge(first)]),
            middle,
            tasks.sink(recorder, producers=[second]),
        )

        assert recorder.values == list(range(0, 20_000, 2))
        assert recorder.controls == [MAX_WATERMARK]
        assert (middle.metrics().num_records_in, middle.metrics().num_records_out) == (10_000, 10_000)

    def test_two_outputs_of_two_operators(self, network: LocalNetwork, tasks: Tasks) -> None:
        """Each edge gets the records of its operator."""
        raw, doubled = network.partition(), network.partition()
        recorders = [Recorder(), Recorder()]
        outputs = [edge(raw, source=0), edge(doubled, source=1)]

        run(
            tasks.source(source([1, 2]), MapOperator(lambda value: value * 2), outputs=outputs),
            tasks.sink(recorders[0], producers=[raw]),
            tasks.sink(recorders[1], producers=[doubled]),
        )

        assert [recorder.values for recorder in recorders] == [[1, 2], [2, 4]]

    def test_a_union_of_gates(self, network: LocalNetwork, tasks: Tasks) -> None:
        """A task with two edges into one chain sleeps on both and ends with both."""
        first, second = network.partition(), network.partition()
        recorder = Recorder()
        consumer = tasks.task("union", recorder, gates=[network.gate(first), network.gate(second)], outputs=[])

        run(
            tasks.source(SourceOperator(CollectionSource(range(5_000))), outputs=[edge(first)]),
            tasks.source(SourceOperator(CollectionSource(range(5_000, 10_000))), outputs=[edge(second)]),
            consumer,
        )

        assert sorted(recorder.values) == list(range(10_000))
        assert recorder.controls == [MAX_WATERMARK]

    def test_consumers_may_start_before_their_producers_exist(self, network: LocalNetwork, tasks: Tasks) -> None:
        partition = network.partition()
        recorder = Recorder()
        consumer = tasks.sink(recorder, producers=[partition])
        thread = parked(consumer)

        run(tasks.source(source([1]), outputs=[edge(partition)]))
        thread.result()

        assert recorder.values == [1]

    def test_the_states_of_a_task(self, network: LocalNetwork, tasks: Tasks) -> None:
        """Created, initializing while it opens, running when it says so, finished."""
        recorder = Recorder()
        task = tasks.source(source(), recorder)
        seen = [task.state]
        recorder.on_open = lambda: seen.append(task.state)
        task.on_running = lambda: seen.append(task.state)

        task.invoke()

        states = ExecutionState
        assert [*seen, task.state] == [states.CREATED, states.INITIALIZING, states.RUNNING, states.FINISHED]

    def test_a_task_runs_once(self, tasks: Tasks) -> None:
        task = tasks.source(source())
        task.invoke()

        with pytest.raises(RuntimeError, match="twice"):
            task.invoke()

    def test_the_context_of_an_operator(self, network: LocalNetwork) -> None:
        """Names and numbers come from the environment."""
        recorder = Recorder("second")
        create_stream_task(network.environment("source", subtask=1, parallelism=4), chain(source(), recorder))

        ctx = recorder.ctx
        assert (ctx.task_name, ctx.operator_name) == ("source", "second")
        assert (ctx.subtask, ctx.parallelism, ctx.max_parallelism, ctx.attempt) == (1, 4, 128, 3)


class TestMetrics:
    def test_before_and_after(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The numbers are zero before, and the final ones stay."""
        partition = network.partition()
        producer = tasks.source(source([1, 2], [3]), outputs=[edge(partition)])
        consumer = tasks.sink(Recorder(), producers=[partition])
        before = producer.metrics()

        run(producer, consumer)

        assert (before.num_records_out, before.accumulated_busy_ms, before.waiting_for) == (0, 0, None)
        out, into = producer.metrics(), consumer.metrics()
        assert (out.num_records_in, out.num_records_out) == (0, 3)
        assert (into.num_records_in, into.num_records_out) == (3, 0)
        assert out.num_bytes_out > 0
        assert into.num_bytes_in_local >= out.num_bytes_out
        assert into.num_bytes_in_remote == into.num_credits_granted == 0
        assert into.num_buffers_in >= out.num_buffers_out > 0
        assert into.current_input_watermark == MAX_WATERMARK.timestamp

    def test_they_may_be_asked_for_at_any_time(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The metrics are asked for from another thread, while the task runs."""
        partition = network.partition()
        producer = tasks.source(SourceOperator(CollectionSource(range(5_000))), outputs=[edge(partition)])
        consumer = tasks.sink(Recorder(), producers=[partition])
        threads = [Thread(producer.invoke), Thread(consumer.invoke)]
        seen = []
        while any(thread.is_alive() for thread in threads):
            seen.append(consumer.metrics().num_records_in)
        for thread in threads:
            thread.result()

        assert seen == sorted(seen)
        assert consumer.metrics().num_records_in == 5_000


@pytest.mark.slow
def test_a_pipeline_under_constant_thread_switches_loses_nothing() -> None:
    """All records arrive once with few buffers, two producers, two consumers and every kind of wait; no wake-up is
    rescued, no buffer left.
    """
    with tiny_switch_interval(), LocalNetwork() as network:
        tasks = Tasks(network)
        partitions = [network.partition(2, max_buffers=4) for _ in range(2)]
        keyed = KeyGroups(lambda value: value)
        sources = [
            tasks.source(source(*([v, v + 2, v + 4] for v in range(start, 6_000, 6))), outputs=[edge(partition, keyed)])
            for start, partition in enumerate(partitions)
        ]
        recorders = [Recorder(), Recorder()]
        sinks = []
        for index, recorder in enumerate(recorders):
            environment = network.environment(
                "sink", gates=[network.gate(*partitions, subpartition=index)], subtask=index
            )
            sinks.append(create_stream_task(environment, chain(recorder)))
        run(*sources, *sinks)

    assert sorted(value for recorder in recorders for value in recorder.values) == list(range(6_000))
    assert all(task.mailbox.statistics().num_rescued_wakeups == 0 for task in (*sources, *sinks))
