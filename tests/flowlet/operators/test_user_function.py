from functools import partial
from typing import Any

import pytest

from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.operators.process_operator import FilterOperator, FlatMapOperator, MapOperator
from flowlet.operators.user_function import UserFunction
from tests.flowlet.operators.harness import Harness


class Recorder:
    """A function object that writes down its calls."""

    def __init__(self, fail_at: str = "") -> None:
        self.events: list[Any] = []
        self.fail_at = fail_at

    def open(self, runtime_context: Any) -> None:
        self.events.append(runtime_context)
        if self.fail_at == "open":
            raise ConnectionError("no database")

    def map(self, value: Any) -> Any:
        self.events.append(value)
        return value

    def close(self) -> None:
        self.events.append("closed")
        if self.fail_at == "close":
            raise ConnectionError("gone")


def test_function_objects_are_opened_and_closed() -> None:
    recorder = Recorder()
    harness = Harness(MapOperator(recorder, name="look up"), subtask=1, parallelism=3, attempt=2, pickled=False)

    harness.process("a")
    harness.operator.close()
    harness.operator.close()

    context, *rest = recorder.events
    assert rest == ["a", "closed"]
    assert context.get_task_name() == "task"
    assert context.get_task_name_with_subtasks() == "task (2/3)"
    assert context.get_index_of_this_subtask() == 1
    assert context.get_number_of_parallel_subtasks() == 3
    assert context.get_max_number_of_parallel_subtasks() == 128
    assert context.get_attempt_number() == 2


@pytest.mark.parametrize("step", ["open", "close"])
def test_a_failing_open_or_close_names_the_operator_but_no_record(step: str) -> None:
    operator = MapOperator(Recorder(step), name="look up")
    with pytest.raises(UserFunctionError) as caught:
        Harness(operator, subtask=1, pickled=False).operator.close()

    assert str(caught.value) == "operator 'look up' (subtask 1) failed"
    assert caught.value.record_preview is None
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert caught.value.__cause__.__notes__ == [f"raised by {step}()"]


def test_what_a_failing_open_took_is_given_back() -> None:
    recorder = Recorder("open")
    operator = MapOperator(recorder)
    with pytest.raises(UserFunctionError):
        Harness(operator, pickled=False)

    operator.close()

    assert recorder.events[-1] == "closed"


def test_plain_callables_are_neither_opened_nor_closed() -> None:
    """A callable that happens to have such methods is not closed by us."""

    class Callable_:
        def __call__(self, value: int) -> int:
            return value + 1

        def open(self) -> None:
            raise AssertionError

        def close(self) -> None:
            raise AssertionError

    harness = Harness(MapOperator(Callable_()))
    harness.process(1)
    harness.operator.close()

    assert harness.output.values == [2]


@pytest.mark.parametrize(
    "function",
    [len, str, partial(int, base=2), "".join, lambda value: value],
    ids=["built-in", "type", "partial", "method", "lambda"],
)
def test_any_callable_is_a_function(function: Any) -> None:
    assert UserFunction(function, "map").call is function


def test_a_class_with_the_method_is_a_callable() -> None:
    """Instances of the class are function objects; the class itself makes records."""
    assert UserFunction(Recorder, "map").call is Recorder


@pytest.mark.parametrize(
    ("make", "method"), [(MapOperator, "map"), (FlatMapOperator, "flat_map"), (FilterOperator, "filter")]
)
def test_what_cannot_be_called_is_refused_when_the_job_is_built(make: Any, method: str) -> None:
    with pytest.raises(JobGraphError, match=rf"an object with a method {method}\(\), got 'text' of type str"):
        make("text")
