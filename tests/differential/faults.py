"""Faults that an engine could have, put into the interpreter: does the comparison notice each of them?

Side:       pure.
Rules:      a fault replaces methods of the interpreter while a program runs; the doings of that run are compared with
            those of an interpreter without the fault, as if they were a job's.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from flowlet.records import MAX_TIMESTAMP
from flowlet.serde.type_serializer import preview
from tests.differential import interpreter
from tests.differential.engine import Actual
from tests.differential.interpreter import Expected, Failed, interpret
from tests.differential.programs import Kind, Program, Step

_Task = interpreter._Task
_Operator = interpreter._Operator
Fault = Callable[[pytest.MonkeyPatch], None]


def run_with(fault: Fault, program: Program) -> Actual:
    """Return the doings of a job on an engine with a fault."""
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        return as_actual(program, interpret(program))


def as_actual(program: Program, found: Expected) -> Actual:
    """Return the doings of an interpreter as if a job had done them."""
    log = [entry for task in found.tasks.values() for entry in task.log]
    for task in found.tasks.values():
        log += [(step, text) for step, texts in task.other_logs.items() for text in texts]
    failures = [task.failure for task in found.tasks.values() if task.failure is not None]
    if not failures:
        return Actual(log, found.collected)
    [failure] = failures
    message = failure.error.removeprefix("Boom(").removesuffix(")")[1:-1]
    return Actual(log, found.collected, (failure.step, failure.record, message), "")


def breadth_first(patch: pytest.MonkeyPatch) -> None:
    """Let each function see all records of its task before the next function does."""
    emit, emit_watermark, run = _Task.emit, _Task.emit_watermark, _Task.run

    def later(task: _Task, step: Step, tag: str | None, value: Any, timestamp: int | None) -> None:
        _waiting(task).append((step, tag, value, timestamp))

    def go_on(task: _Task) -> None:
        waiting = _waiting(task)
        while waiting:
            emit(task, *waiting.popleft())

    def behind_all(task: _Task, step: Step, timestamp: int) -> None:
        go_on(task)
        emit_watermark(task, step, timestamp)

    def to_the_end(task: _Task) -> None:
        run(task)
        go_on(task)

    patch.setattr(_Task, "emit", later)
    patch.setattr(_Task, "emit_watermark", behind_all)
    patch.setattr(_Task, "run", to_the_end)


def _waiting(task: _Task) -> deque[tuple[Step, str | None, Any, int | None]]:
    waiting: deque[tuple[Step, str | None, Any, int | None]] = vars(task).setdefault("waiting", deque())
    return waiting


def generators_run_to_their_end_first(patch: pytest.MonkeyPatch) -> None:
    """Make all results of one call before the first one goes on."""
    each = _Operator.each
    patch.setattr(_Operator, "each", lambda self, record, results: iter(list(each(self, record, results))))


def chained_functions_get_copies(patch: pytest.MonkeyPatch) -> None:
    emit = _Task.emit
    patch.setattr(
        _Task,
        "emit",
        lambda self, step, tag, value, timestamp: emit(self, step, tag, pickle.loads(pickle.dumps(value)), timestamp),
    )


def second_consumers_get_copies(patch: pytest.MonkeyPatch) -> None:
    """Give the very object to the first of several consumers in one task, and copies to the others."""
    chained = _Task.chained

    def emit(task: _Task, step: Step, tag: str | None, value: Any, timestamp: int | None) -> None:
        copy = _copied(value)
        readers = [consumer for consumer in chained(task, step) if consumer.reads[0].tag == tag]
        for number, consumer in enumerate(readers):
            task.operator(consumer).receive(0, value if number == 0 else copy, timestamp)
        for key, edge_tag in task.edges_of(step):
            if edge_tag == tag:
                task.send(key, pickle.dumps(value), timestamp)

    patch.setattr(_Task, "emit", emit)


@dataclass
class _Pickle:
    """Takes the place of the module at the edges."""

    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]


def _with_pickle(patch: pytest.MonkeyPatch, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> None:
    patch.setattr(interpreter, "pickle", _Pickle(dumps, loads))
    patch.setattr(interpreter, "_copied", _copied)


def _copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


class _Kept(list[Any]):
    """Objects by a number, which stands for their pickle."""

    def add(self, value: Any) -> bytes:
        self.append(value)
        return str(len(self) - 1).encode()

    def find(self, number: bytes) -> Any:
        return self[int(number)]


def records_are_serialized_late(patch: pytest.MonkeyPatch) -> None:
    """Serialize records at edges only when their task has no more work."""
    kept = _Kept()
    _with_pickle(patch, kept.add, lambda number: _copied(kept.find(number)))


def tasks_share_objects(patch: pytest.MonkeyPatch) -> None:
    """Hand records to a task in this process without a copy."""
    kept = _Kept()
    _with_pickle(patch, kept.add, kept.find)


def one_object_stays_one_behind_an_edge(patch: pytest.MonkeyPatch) -> None:
    """Let an object that was emitted twice, unchanged, arrive as one object, as it does from one pickle of many
    records.
    """
    made: dict[bytes, Any] = {}
    _with_pickle(patch, pickle.dumps, lambda pickled: made.setdefault(pickled, pickle.loads(pickled)))


def results_of_coroutines_are_not_copied(patch: pytest.MonkeyPatch) -> None:
    """Let the result of a coroutine change until it goes on."""
    patch.setattr(interpreter._Async, "taken", lambda self, value: value)


def records_of_sources_are_not_copied(patch: pytest.MonkeyPatch) -> None:
    """Let the record of a source function change until it goes on."""
    patch.setattr(interpreter._SourceFunction, "taken", lambda self, value: value)


def reduce_emits_copies(patch: pytest.MonkeyPatch) -> None:
    """The state of a reduction is safe from those who get its results."""
    emit = _Operator.emit

    def copied(operator: Any, value: Any, timestamp: int | None, tag: str | None = None) -> None:
        emit(operator, _copied(value), timestamp, tag)

    patch.setattr(interpreter._Reduce, "emit", copied)


def edges_come_before_chained_consumers(patch: pytest.MonkeyPatch) -> None:
    """Serialize a record before the consumers in its task have seen it."""
    _with_emission(patch, lambda first, second: [*second, *first])


def consumers_in_reverse(patch: pytest.MonkeyPatch) -> None:
    chained = _Task.chained
    patch.setattr(_Task, "chained", lambda self, step: list(reversed(chained(self, step))))


def _with_emission(patch: pytest.MonkeyPatch, order: Callable[[list[Any], list[Any]], list[Any]]) -> None:
    def emit(task: _Task, step: Step, tag: str | None, value: Any, timestamp: int | None) -> None:
        inner = [
            lambda reader=reader: task.operator(reader).receive(0, value, timestamp)
            for reader in task.chained(step)
            if reader.reads[0].tag == tag
        ]
        outer = [
            lambda key=key: task.send(key, pickle.dumps(value), timestamp)
            for key, edge_tag in task.edges_of(step)
            if edge_tag == tag
        ]
        for way in order(inner, outer):
            way()

    patch.setattr(_Task, "emit", emit)


def the_outermost_operator_is_blamed(patch: pytest.MonkeyPatch) -> None:
    """Blame one of the operators that an error passes on its way out."""
    emit = _Task.emit

    def blaming(task: _Task, step: Step, tag: str | None, value: Any, timestamp: int | None) -> None:
        try:
            emit(task, step, tag, value, timestamp)
        except Failed as failure:
            raise Failed(step.id, failure.record, failure.error) from failure

    patch.setattr(_Task, "emit", blaming)


def errors_show_the_record_before_the_call(patch: pytest.MonkeyPatch) -> None:
    """The preview in an error is taken before the function has changed the record."""
    call = _Operator.call

    def previewing(operator: Any, record: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        before = None if record is interpreter._NO_RECORD else preview(record)
        try:
            return call(operator, record, function, *arguments)
        except Failed as failure:
            if failure.step != operator.step.id:
                raise
            raise Failed(failure.step, before, failure.error) from failure

    patch.setattr(_Operator, "call", previewing)


def results_before_a_failure_are_lost(patch: pytest.MonkeyPatch) -> None:
    """Lose results that a generator had yielded before it failed: the functions behind it have not seen them."""
    each = _Operator.each

    def all_or_nothing(operator: Any, record: Any, results: Any) -> Iterator[Any]:
        found = []
        for result in each(operator, record, results):
            found.append(result)
            if not _may_fail(operator.step):
                yield found.pop()
        yield from found

    patch.setattr(_Operator, "each", all_or_nothing)


def _may_fail(step: Step) -> bool:
    return step.call is not None and "Fail" in step.call.name


def functions_before_the_failed_one_go_on(patch: pytest.MonkeyPatch) -> None:
    """The first function of the failing task has seen one record more."""
    run = _Task.run

    def one_more(task: _Task) -> None:
        try:
            run(task)
        except Failed as failure:
            first = task.chained(task.head)[0] if task.head.kind is Kind.COLLECTION else task.head
            if failure.step != first.id and not first.kind.is_source and first.kind is not Kind.AGGREGATE:
                task.operator(first).function.see("one more")
            raise

    patch.setattr(_Task, "run", one_more)


def the_generator_of_watermarks_comes_first(patch: pytest.MonkeyPatch) -> None:
    """Show a record to the generator of watermarks before the records behind it see it."""
    _with_early_generator(patch, is_record_first=True)


def watermarks_come_before_their_records(patch: pytest.MonkeyPatch) -> None:
    """Let a watermark overtake the record that caused it."""
    _with_early_generator(patch, is_record_first=False)


def _with_early_generator(patch: pytest.MonkeyPatch, *, is_record_first: bool) -> None:
    def receive(operator: Any, number: int, value: Any, timestamp: int | None) -> None:
        assigned = operator.call(value, operator.function.extract_timestamp, value, timestamp)
        if operator.generator is not None:
            operator.call(value, operator.generator.on_event, value, assigned, operator)
        said, operator.said = operator.said, []
        if is_record_first:
            operator.emit(value, assigned)
        for each in said:
            operator.advance(each)
        if not is_record_first:
            operator.emit(value, assigned)

    patch.setattr(interpreter._EventTime, "receive", receive)


def watermarks_wait_for_the_end(patch: pytest.MonkeyPatch) -> None:

    def advance(operator: Any, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            _Operator.watermark(operator, timestamp)

    patch.setattr(interpreter._EventTime, "advance", advance)


def timers_fire_in_the_order_of_registration(patch: pytest.MonkeyPatch) -> None:
    """Fire timers in the order of their registration, not of their timestamps."""

    def watermark(operator: Any, timestamp: int) -> None:
        operator.current_watermark = timestamp
        due = sorted((timer for timer in operator.timers if timer[0] <= timestamp), key=lambda timer: timer[1])
        operator.timers[:] = [timer for timer in operator.timers if timer[0] > timestamp]
        for fired, _, key in due:
            context = interpreter._Context(operator, key, fired)
            none = interpreter._NO_RECORD
            operator.emit_each(none, operator.call(none, operator.function.on_timer, fired, context), fired)
        operator.task.emit_watermark(operator.step, timestamp)

    patch.setattr(interpreter._Process, "watermark", watermark)


def results_of_timers_have_no_timestamp(patch: pytest.MonkeyPatch) -> None:
    """Hide from the operators behind a timer when it fired."""
    emit_each = _Operator.emit_each

    def without(operator: Any, record: Any, results: Any, timestamp: int | None) -> None:
        emit_each(operator, record, results, None if record is interpreter._NO_RECORD else timestamp)

    patch.setattr(interpreter._Process, "emit_each", without)


def equal_records_are_one(patch: pytest.MonkeyPatch) -> None:
    """Make one value of 1, True and 1.0 at an edge, as in a dictionary."""
    first: dict[Any, Any] = {}

    def loads(pickled: bytes) -> Any:
        value = pickle.loads(pickled)
        try:
            return first.setdefault(value, value)
        except TypeError:
            return value

    _with_pickle(patch, pickle.dumps, loads)


def lists_become_tuples(patch: pytest.MonkeyPatch) -> None:
    """Turn lists into tuples at edges, as some formats do."""

    def loads(pickled: bytes) -> Any:
        value = pickle.loads(pickled)
        return tuple(value) if type(value) is list else value

    _with_pickle(patch, pickle.dumps, loads)


def a_record_is_lost_in_long_runs(patch: pytest.MonkeyPatch) -> None:
    """The record behind a chunk of 1,000."""
    receive = _Task.send

    def send(task: _Task, key: Any, pickled: bytes | None, timestamp: int | None) -> None:
        sent = task.interpreter.edges.get(key, [])
        if len(sent) != 1_000:
            receive(task, key, pickled, timestamp)
        else:
            receive(task, key, sent[-1].pickled, timestamp)

    patch.setattr(_Task, "send", send)


def side_outputs_come_last(patch: pytest.MonkeyPatch) -> None:
    """Emit a call's results for side outputs behind its results for the main output."""
    emit_each = _Operator.emit_each

    def sorted_out(operator: Any, record: Any, results: Any, timestamp: int | None) -> None:
        sides: list[tuple[Any, Any, Any]] = []
        emit = operator.emit

        def sort(value: Any, at: int | None, tag: str | None = None) -> None:
            if tag is None:
                emit(value, at)
            else:
                sides.append((value, at, tag))

        operator.emit = sort
        try:
            emit_each(operator, record, results, timestamp)
        finally:
            operator.emit = emit
        for side in sides:
            emit(*side)

    patch.setattr(_Operator, "emit_each", sorted_out)


FAULTS: Final[tuple[Fault, ...]] = (
    breadth_first,
    generators_run_to_their_end_first,
    chained_functions_get_copies,
    second_consumers_get_copies,
    records_are_serialized_late,
    tasks_share_objects,
    one_object_stays_one_behind_an_edge,
    results_of_coroutines_are_not_copied,
    records_of_sources_are_not_copied,
    reduce_emits_copies,
    edges_come_before_chained_consumers,
    consumers_in_reverse,
    the_outermost_operator_is_blamed,
    errors_show_the_record_before_the_call,
    results_before_a_failure_are_lost,
    functions_before_the_failed_one_go_on,
    the_generator_of_watermarks_comes_first,
    watermarks_come_before_their_records,
    watermarks_wait_for_the_end,
    timers_fire_in_the_order_of_registration,
    results_of_timers_have_no_timestamp,
    equal_records_are_one,
    lists_become_tuples,
    a_record_is_lost_in_long_runs,
    side_outputs_come_last,
)
