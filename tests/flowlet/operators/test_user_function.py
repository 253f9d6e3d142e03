from functools import partial
from typing import Any

import pytest
from hypothesis import given

from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.operators.transform import FilterOperator, FlatMapOperator, MapOperator
from flowlet.operators.user_function import MAX_PREVIEW_CHARACTERS, UserFunction, preview
from tests.flowlet.operators.harness import Harness
from tests.flowlet.serde.exact import NESTED


class Recorder:
    """A function object that writes down what happens to it."""

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
    """A callable that happens to have such methods is nobody's to close."""

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
    "function", [len, str, partial(int, base=2), "".join, lambda value: value], ids=["built-in", "type", "partial", "method", "lambda"]
)
def test_any_callable_is_a_function(function: Any) -> None:
    assert UserFunction(function, "map").call is function


def test_a_class_with_the_method_is_a_callable() -> None:
    """Its instances are function objects, the class makes records."""
    assert UserFunction(Recorder, "map").call is Recorder


@pytest.mark.parametrize(("make", "method"), [(MapOperator, "map"), (FlatMapOperator, "flat_map"), (FilterOperator, "filter")])
def test_what_cannot_be_called_is_refused_when_the_job_is_built(make: Any, method: str) -> None:
    with pytest.raises(JobGraphError, match=rf"an object with a method {method}\(\), got 'text' of type str"):
        make("text")


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Evil(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name either")

    def __repr__(cls) -> str:
        raise RuntimeError("nor this")


class Nameless(metaclass=Evil):
    def __repr__(self) -> str:
        raise RuntimeError("no")


class ReprSubclass(str):
    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("no")


class Sly:
    def __repr__(self) -> str:
        return ReprSubclass("sly\r\n\ud83d")


class Multiline:
    def __repr__(self) -> str:
        return "a\nb" * 100


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (("word", 1), "('word', 1)"),
        ("a\nb\ud83d", r"'a\nb\ud83d'"),
        (Hostile(), "<a Hostile whose repr raised RuntimeError>"),
        (Nameless(), "<a Nameless whose repr raised RuntimeError>"),
        (Sly(), r"sly\r\n\ud83d"),
        (10**5000, "<a int whose repr raised ValueError>"),
        (b"ab", "b'ab'"),
        (None, "None"),
    ],
    ids=["tuple", "surrogate", "hostile", "nameless", "sly", "huge int", "bytes", "None"],
)
def test_a_preview_never_fails(record: Any, expected: str) -> None:
    assert preview(record) == expected


@pytest.mark.parametrize(
    "record",
    ["x" * 10_000, list(range(10_000)), b"x" * 10_000, Multiline(), dict.fromkeys(range(99), "y" * 99)],
    ids=["str", "list", "bytes", "lines", "dict"],
)
def test_a_preview_is_one_short_line(record: Any) -> None:
    text = preview(record)

    assert 30 < len(text) <= MAX_PREVIEW_CHARACTERS
    assert "..." in text
    assert "\n" not in text


def test_a_record_that_contains_itself_or_is_deep_has_a_preview() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]

    assert preview(loop)
    assert preview(deep)


@given(NESTED)
def test_a_preview_can_be_sent_as_utf8(record: Any) -> None:
    assert preview(record).encode()
