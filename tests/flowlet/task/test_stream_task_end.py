import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from flowlet.errors import TaskCancelled, UserFunctionError
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.process_operator import MapOperator
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.task.stream_task import StreamTask
from netstack.errors import PartitionNotFoundError, ProducerFailedError
from netstack.partition.result_partition import ResultPartition
from tests.flowlet.task.local_network import SEGMENT_BYTES, LocalNetwork, Recorder, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, cancel, is_parked, parked, run, source
from tests.flowlet.task.watchdog import tiny_switch_interval
from tests.waiting import PATIENCE_S, spin_until


def fails(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


class TestFailure:
    def failing(self, tasks: Tasks, partition: ResultPartition) -> tuple[StreamTask, Recorder]:
        recorder = Recorder()
        operators = (source([1, 2], [0]), MapOperator(lambda value: 1 // value), recorder)
        return tasks.source(*operators, outputs=[edge(partition, source=2)]), recorder

    def test_a_users_error_comes_out_with_the_record(self, network: LocalNetwork, tasks: Tasks) -> None:
        """Operators are closed but not finished."""
        task, recorder = self.failing(tasks, network.partition())

        with pytest.raises(UserFunctionError) as caught:
            task.invoke()

        assert caught.value.record_preview == "0"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert recorder.calls[-1] == "close"
        assert "finish" not in recorder.calls
        assert task.state is ExecutionState.FAILED

    def test_consumers_learn_the_reason(self, network: LocalNetwork, tasks: Tasks) -> None:
        """Consumers fail, too, and name the producer."""
        partition = network.partition()
        task, _ = self.failing(tasks, partition)
        consumer = tasks.sink(Recorder(), producers=[partition])
        threads = [Thread(consumer.invoke), Thread(task.invoke)]

        with pytest.raises(ProducerFailedError, match="Map"):
            threads[0].result()
        with pytest.raises(UserFunctionError):
            threads[1].result()

    def test_a_consumer_that_fails_gives_its_gates_back(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The producer of the consumer can go on."""
        partition = network.partition(max_buffers=2)
        consumer = tasks.sink(MapOperator(lambda value: 1 // 0), producers=[partition])
        producer = tasks.source(SourceOperator(CollectionSource(range(20_000))), outputs=[edge(partition)])
        threads = [Thread(consumer.invoke), Thread(producer.invoke)]

        with pytest.raises(UserFunctionError):
            threads[0].result()
        threads[1].result()

    def test_an_error_while_opening(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The task never runs, and its opened operators are closed."""
        partition = network.partition()
        first, second = Recorder(), Recorder()
        running: list[int] = []
        first.on_open = fails(ValueError("cannot open"))
        task = tasks.source(source(), first, second, outputs=[edge(partition, source=2)])
        task.on_running = lambda: running.append(1)
        with pytest.raises(ValueError, match="cannot open"):
            task.invoke()

        assert running == []
        assert second.calls == ["open", "close"]
        assert partition.is_released

    def test_errors_while_cleaning_up_are_notes_of_the_first(self, network: LocalNetwork, tasks: Tasks) -> None:
        partition = network.partition()
        task, recorder = self.failing(tasks, partition)
        recorder.on_close = fails(OSError("cannot close"))
        with pytest.raises(UserFunctionError) as caught:
            task.invoke()

        assert any("cannot close" in note for note in caught.value.__notes__)
        assert partition.is_released

    def test_all_errors_while_giving_back_are_reported(
        self, network: LocalNetwork, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first error has notes about the others, even at the end of a task that went well."""
        task = tasks.source(source(["a"]), Recorder())

        def fail(reason: str) -> None:
            raise OSError(reason)

        monkeypatch.setattr(type(task._services), "close", lambda _: fail("the clock is stuck"))
        monkeypatch.setattr(task._flushers, "close", lambda: fail("the flusher is stuck"))
        with pytest.raises(OSError, match="the clock is stuck") as caught:
            task.invoke()

        assert any(note.startswith("then OSError: the flusher is stuck") for note in caught.value.__notes__)

    def test_a_failing_close_fails_the_task_before_its_consumers_believe_it(
        self, network: LocalNetwork, tasks: Tasks
    ) -> None:
        """The end of partition is sent only after everything was closed."""
        partition = network.partition()
        recorder = Recorder()
        recorder.on_close = fails(OSError("cannot close"))
        task = tasks.source(source([1]), recorder, outputs=[edge(partition, source=1)])
        consumer = tasks.sink(Recorder(), producers=[partition])
        threads = [Thread(consumer.invoke), Thread(task.invoke)]

        with pytest.raises(OSError, match="cannot close"):
            threads[1].result()
        with pytest.raises(ProducerFailedError):
            threads[0].result()
        assert recorder.calls.count("close") == 1

    def test_an_error_of_a_mail_fails_the_task(self, network: LocalNetwork, tasks: Tasks) -> None:
        task = tasks.sink(Recorder(), producers=[network.partition()])
        thread = parked(task)

        task.mailbox_processor.executor().execute(lambda: 1 // 0, "divide")

        with pytest.raises(ZeroDivisionError):
            thread.result()

    def test_mails_that_never_ran_are_cancelled(self, tasks: Tasks) -> None:
        class Dropped:
            is_cancelled = False

            def __call__(self) -> None:
                raise AssertionError("it never runs")

            def cancel(self) -> None:
                self.is_cancelled = True

        dropped = Dropped()

        def post() -> None:
            task.mailbox_processor.executor().execute(dropped, "never")
            raise ValueError("now")

        task = tasks.source(source(post))
        with pytest.raises(UserFunctionError):
            task.invoke()

        assert dropped.is_cancelled


def reading(tasks: Tasks, partition: ResultPartition, recorder: Recorder) -> StreamTask:
    return tasks.sink(recorder, producers=[partition])


def writing(*texts: str) -> Callable[[Tasks, ResultPartition, Recorder], StreamTask]:
    return lambda tasks, partition, recorder: tasks.source(
        source(*([text] for text in texts)), recorder, outputs=[edge(partition, source=1)]
    )


# What makes a task that waits, the text that says so, and the calls of its operator when it was cancelled then.
WAITS: dict[str, tuple[Callable[[Tasks, ResultPartition, Recorder], StreamTask], str, list[str]]] = {
    "for input": (reading, "data on 1 of 1 gates", ["open", "close"]),
    "for room between two records": (writing(*["x" * (SEGMENT_BYTES - 100)] * 10), "a free buffer", ["open", "close"]),
    "in the middle of a record": (writing("x" * 10 * SEGMENT_BYTES), "1 threads wait for a buffer", ["open", "close"]),
    "for the acknowledgement": (writing("x"), "process all data", ["open", "watermark", "finish", "close"]),
}


class TestCancel:
    def test_before_the_start_everything_is_given_back(self, network: LocalNetwork, tasks: Tasks) -> None:
        """Whether or not the thread still comes."""
        upstream, downstream = network.partition(), network.partition()
        recorder = Recorder()
        task = tasks.task("middle", recorder, gates=[network.gate(upstream)], outputs=[edge(downstream)])

        task.cancel()
        task.cancel()

        assert task.state is ExecutionState.CANCELED
        assert downstream.is_released
        assert all(gate.is_closed for gate in network.gates)
        with pytest.raises(TaskCancelled, match="before it started"):
            task.invoke()
        assert recorder.calls == []

    def test_while_opening(self, tasks: Tasks) -> None:
        """The operators are closed; the task never runs."""
        recorder = Recorder()
        task = tasks.source(source(), recorder)
        recorder.on_open = task.cancel
        running: list[int] = []
        task.on_running = lambda: running.append(1)

        with pytest.raises(TaskCancelled):
            task.invoke()

        assert recorder.calls == ["open", "close"]
        assert running == []
        assert task.state is ExecutionState.CANCELED

    @pytest.mark.parametrize("name", WAITS)
    def test_while_it_waits(self, network: LocalNetwork, tasks: Tasks, name: str) -> None:
        """Its operators are closed once, its partition is released."""
        make, what, calls = WAITS[name]
        partition, recorder = network.partition(max_buffers=2), Recorder()
        task = make(tasks, partition, recorder)
        thread = Thread(task.invoke)
        spin_until(lambda: what in f"{task!r} {task.waiting_for}" and (is_parked(task) or "threads" in what))

        # Out of that wait, or of the mailbox if a buffer of the failed partition came first.
        cancel(task, thread)

        assert [call for call in recorder.calls if call != "chunk"] == calls
        assert task.state is ExecutionState.CANCELED
        assert partition.is_released is (name != "for input")

    def test_while_user_code_runs_and_fails_because_of_it(self, tasks: Tasks) -> None:
        """An error that user code raises after the cancel is a consequence, and is kept as the cause."""

        def cancel_and_fail(value: int) -> int:
            task.cancel()
            raise ValueError("the world is ending")

        task = tasks.source(source([1]), MapOperator(cancel_and_fail))

        with pytest.raises(TaskCancelled) as caught:
            task.invoke()
        assert isinstance(caught.value.__cause__, UserFunctionError)

    def test_user_code_cannot_swallow_it(self, tasks: Tasks) -> None:
        """The user's code catches Exception around a yield."""

        def swallow(value: int) -> int:
            task.cancel()
            with contextlib.suppress(Exception):  # what careless users write
                task.mailbox_processor.executor(7).yield_()
            return value

        task = tasks.source(source([1], [2]), MapOperator(swallow))

        with pytest.raises(TaskCancelled):
            task.invoke()

    def test_after_the_end_it_changes_nothing(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The results that a slower consumer still reads stay readable."""
        partition = network.partition()
        recorder = Recorder()
        run(tasks.sink(recorder, producers=[partition]), task := tasks.source(source([1]), outputs=[edge(partition)]))

        task.cancel()

        assert task.state is ExecutionState.FINISHED

    def test_in_the_last_moment(self, tasks: Tasks) -> None:
        """A task that is cancelled while its operators are closed ends as cancelled, and closes none twice."""
        recorder = Recorder()
        task = tasks.source(source([1]), recorder)
        recorder.on_close = task.cancel

        with pytest.raises(TaskCancelled):
            task.invoke()

        assert recorder.calls.count("close") == 1
        assert task.state is ExecutionState.CANCELED

    def test_the_consumer_of_a_partition_that_is_released_meanwhile_does_not_find_it(
        self, network: LocalNetwork, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The producer is cancelled between the moment when the consumer finds the partition and that when it asks for
        a view.
        """
        partition = network.partition()
        consumer = tasks.sink(Recorder(), producers=[partition])
        create_view = partition.create_subpartition_view

        def release_first(*arguments: Any) -> Any:
            partition.release(TaskCancelled("producer"))
            return create_view(*arguments)

        monkeypatch.setattr(partition, "create_subpartition_view", release_first)

        with pytest.raises(PartitionNotFoundError, match="was released at its producer"):
            consumer.invoke()

    @pytest.mark.slow
    def test_against_the_natural_end(self) -> None:
        """Each task ends finished or cancelled wherever the cancel strikes; no task hangs or leaks (FLINK-14544)."""
        with tiny_switch_interval():
            ends = [self._race(number) for number in range(180)]

        # Of a producer that was cancelled its consumer hears that it failed, or finds nothing where it was (a
        # consequence, ``tm.task``).
        consequences = {"ProducerFailedError", "PartitionNotFoundError"}
        assert {end for pair in ends for end in pair} <= {"finished", "TaskCancelled"} | consequences
        assert {"finished", "TaskCancelled"} <= {end for pair in ends for end in pair}

    def _race(self, number: int) -> list[str]:
        with LocalNetwork() as network:
            tasks = Tasks(network)
            partition = network.partition(max_buffers=3)
            recorder = Recorder()
            producer = tasks.source(source(*([1, 2, 3] for _ in range(40))), outputs=[edge(partition)])
            consumer = tasks.sink(recorder, producers=[partition])
            if number == 0:  # one order by force, and below the other one
                producer.cancel()
            threads = [Thread(producer.invoke), Thread(consumer.invoke)]
            if number == 1:
                for thread in threads:
                    thread.join(PATIENCE_S)
            enough = 3 * (number % 45)
            spin_until(lambda: len(recorder.values) >= enough or not threads[1].is_alive())
            for task in (producer, consumer) if number % 2 else (consumer, producer):
                task.cancel()
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), f"{producer!r} {consumer!r}"
            return [type(thread.error).__name__ if thread.error else "finished" for thread in threads]
