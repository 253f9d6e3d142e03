"""Runs a program record by record, as plainly as can be: what the engine promises.

Side:       pure, but for the worlds of ``functions``.
Rules:      a record passes all functions of its task before the next one is made: consumers of one output in turn,
            chained ones first and then edges, each in the order in which they were added; a generator goes on when its
            last result has passed them.  Chained functions hand on the very object.  At an edge a record is pickled as
            it is emitted; the reader has a copy.  What a source function or a coroutine gives comes from another
            thread: it is copied as it is given, too.  Watermarks and timers are Flink's: a record passes before the
            watermark that it causes, timers fire in the order of their timestamps before the watermark goes on.
Absent:     several subtasks, processing time, checkpoints, batch mode.
"""

import heapq
import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from flowlet.datastream import OutputTag
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from flowlet.serde.type_serializer import preview
from tests.differential import worlds
from tests.differential.functions import function as function_named
from tests.differential.programs import Call, Kind, Program, Step


class Failed(Exception):
    """A user's function raised; ``record`` is the preview of its argument, as it was afterwards."""

    def __init__(self, step: int, record: str | None, error: str) -> None:
        super().__init__(step, record, error)
        self.step = step
        self.record = record
        self.error = error


@dataclass(frozen=True)
class Sent:
    """A record, or a watermark (``pickled`` is None), on an edge.

    ``num_logged`` and ``num_read``: what its task, other threads included, had logged and read when it was emitted.
    """

    pickled: bytes | None
    timestamp: int | None
    num_logged: int
    num_read: int


@dataclass
class TaskResult:
    """The doings of one task.

    Attributes:
        log: what the functions see, in order; but for those that run on another thread.
        other_logs: the calls on another thread, by step.
        failure: the error that ends it.
        is_cut: whether its input is not all that there would have been, because a task before it failed.
        num_read: how much of its input it reads, when it fails.
        inputs: the edges that it reads, and from which task each.
        num_logged: how long ``log`` was when there were so many entries together with those of other threads.
    """

    log: list[tuple[int, str]] = field(default_factory=list)
    other_logs: dict[int, list[str]] = field(default_factory=dict)
    failure: Failed | None = None
    is_cut: bool = False
    num_read: int = 0
    inputs: list[list[Sent]] = field(default_factory=list)
    producers: list[int] = field(default_factory=list)
    num_logged: list[int] = field(default_factory=list)


@dataclass
class Expected:
    """The doings of a program: by task, and its collected results."""

    tasks: dict[int, TaskResult]
    collected: list[Any]
    collected_from: int  # the task

    @property
    def failed_task(self) -> int | None:
        """The one that fails, if any."""
        return next((head for head, task in self.tasks.items() if task.failure is not None), None)

    def least_logged(self) -> dict[int, int]:
        """Return how much each task has logged at least when the failed one fails: the records that this one read were
        emitted.
        """
        least = dict.fromkeys(self.tasks, 0)
        failed = self.failed_task
        if failed is not None:
            self._trace_back(failed, self.tasks[failed].num_read, least)
        return least

    def _trace_back(self, head: int, num_read: int, least: dict[int, int]) -> None:
        task = self.tasks[head]
        # Of two inputs one has records, or nobody knows how they mix.
        full = [number for number, sent in enumerate(task.inputs) if any(each.pickled is not None for each in sent)]
        # The inputs are read one after the other.
        place = num_read - 1 - sum(len(sent) for sent in task.inputs[: full[0]]) if len(full) == 1 else -1
        if place < 0:
            return
        sent = task.inputs[full[0]]
        last = sent[min(place, len(sent) - 1)]
        producer = task.producers[full[0]]
        least[producer] = self.tasks[producer].num_logged[last.num_logged]
        self._trace_back(producer, last.num_read, least)


def interpret(program: Program) -> Expected:
    """Run a program.

    Raises:
        Failed: never; a function that raises ends its task.
    """
    number = worlds.new_world()
    try:
        return _Interpreter(program, number).run()
    finally:
        worlds.forget_world(number)


# From a step, to a step (-1: the client), as that one's so manieth input.
_Edge = tuple[int, int, int]


class _Interpreter:
    def __init__(self, program: Program, world_number: int) -> None:
        self.program = program
        self.world_number = world_number
        self.log = worlds.world(world_number).log
        self.edges: dict[_Edge, list[Sent]] = {}
        self.tasks: dict[int, TaskResult] = {}

    def run(self) -> Expected:
        program = self.program
        for step in program.steps:
            if program.head(step) == step.id:
                self.run_task(step)
        collected = program.collected
        sent = self.edges.get((collected.step, -1, 0), [])
        values = [pickle.loads(each.pickled) for each in sent if each.pickled is not None]
        return Expected(self.tasks, values, program.head(program.step(collected.step)))

    def run_task(self, head: Step) -> None:
        program = self.program
        result = self.tasks[head.id] = TaskResult()
        result.inputs = [self.edges.get((read.step, head.id, number), []) for number, read in enumerate(head.reads)]
        result.producers = [program.head(program.step(read.step)) for read in head.reads]
        result.is_cut = any(
            self.tasks[producer].failure or self.tasks[producer].is_cut for producer in result.producers
        )
        del self.log[:]
        task = _Task(self, result, head)
        try:
            task.run()
        except Failed as failure:
            result.failure = failure
        apart = {step.id for step in program.steps if step.kind in (Kind.SOURCE, Kind.ASYNC)}
        result.log = [entry for entry in self.log if entry[0] not in apart]
        result.num_logged = [0, *itertools.accumulate(entry[0] not in apart for entry in self.log)]
        for step_id in apart & {entry[0] for entry in self.log}:
            result.other_logs[step_id] = [text for step, text in self.log if step == step_id]


class _Task:
    """One task, while it runs."""

    def __init__(self, interpreter: _Interpreter, result: TaskResult, head: Step) -> None:
        self.interpreter = interpreter
        self.program = interpreter.program
        self.result = result
        self.head = head
        self.operators: dict[int, _Operator] = {}
        self.chained_to: dict[int, list[Step]] = {}
        self.edges_from: dict[int, list[tuple[_Edge, str | None]]] = {}

    def operator(self, step: Step) -> "_Operator":
        if step.id not in self.operators:
            self.operators[step.id] = _KINDS[step.kind](self, step)
        return self.operators[step.id]

    def run(self) -> None:
        head = self.operator(self.head)
        if isinstance(head, _Source):
            head.emit_all()
        else:
            self.read_all(head)
        if not self.result.is_cut:
            head.watermark(MAX_TIMESTAMP)

    def read_all(self, head: "_Operator") -> None:
        has_many = len(self.result.inputs) > 1
        if isinstance(head, _Async):
            head.begin(
                [pickle.loads(each.pickled) for sent in self.result.inputs for each in sent if each.pickled is not None]
            )
        for number, sent in enumerate(self.result.inputs):
            for each in sent:
                self.result.num_read += 1
                if each.pickled is not None:
                    head.receive(number, pickle.loads(each.pickled), each.timestamp)
                elif each.timestamp is not None and each.timestamp < MAX_TIMESTAMP and not has_many:
                    head.watermark(each.timestamp)

    def emit(self, step: Step, tag: str | None, value: Any, timestamp: int | None) -> None:
        """Emit to all consumers of an output; no consumer sees what another one does with a record."""
        chained = [consumer for consumer in self.chained(step) if consumer.reads[0].tag == tag]
        edges = [key for key, edge_tag in self.edges_of(step) if edge_tag == tag]
        for place, consumer in enumerate(chained, start=1):
            # The last one gets the very object, but behind a key_by nobody has it.
            is_given_away = place == len(chained) and not edges and consumer.key is None
            self.operator(consumer).receive(0, value if is_given_away else _copied(value), timestamp)
        for key in edges:
            self.send(key, pickle.dumps(value), timestamp)

    def emit_watermark(self, step: Step, timestamp: int) -> None:
        for consumer in self.chained(step):
            self.operator(consumer).watermark(timestamp)
        for key, _ in self.edges_of(step):
            self.send(key, None, timestamp)

    def chained(self, step: Step) -> list[Step]:
        if step.id not in self.chained_to:
            consumers = self.program.consumers(step.id)
            self.chained_to[step.id] = [consumer for consumer in consumers if self.program.is_chained(consumer)]
        return self.chained_to[step.id]

    def edges_of(self, step: Step) -> list[tuple[_Edge, str | None]]:
        if step.id not in self.edges_from:
            self.edges_from[step.id] = list(self.find_edges(step))
        return self.edges_from[step.id]

    def find_edges(self, step: Step) -> Iterator[tuple[_Edge, str | None]]:
        for consumer in self.program.consumers(step.id):
            if not self.program.is_chained(consumer):
                for number, read in enumerate(consumer.reads):
                    if read.step == step.id:
                        yield (step.id, consumer.id, number), read.tag
        if self.program.collected.step == step.id:
            yield (step.id, -1, 0), self.program.collected.tag

    def send(self, key: _Edge, pickled: bytes | None, timestamp: int | None) -> None:
        self.interpreter.edges.setdefault(key, []).append(
            Sent(pickled, timestamp, len(self.interpreter.log), self.result.num_read)
        )


class _Operator:
    """One step in its task."""

    def __init__(self, task: _Task, step: Step) -> None:
        self.task = task
        self.step = step
        self.current_watermark = MIN_TIMESTAMP
        self.function: Any = None if step.call is None else self.made(step.call)
        self.prepare()

    def prepare(self) -> None:
        """Prepare the fields that this kind of operator needs."""

    def made(self, call: Call) -> Any:
        return function_named(call.name)(self.task.interpreter.world_number, self.step.id, *call.arguments)

    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        raise NotImplementedError

    def watermark(self, timestamp: int) -> None:
        self.current_watermark = timestamp
        self.task.emit_watermark(self.step, timestamp)

    def emit(self, value: Any, timestamp: int | None, tag: str | None = None) -> None:
        self.task.emit(self.step, tag, value, timestamp)

    def call(self, record: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the user's, which is to blame if it raises."""
        try:
            return function(*arguments)
        except (Failed, StopIteration):
            raise
        except Exception as error:
            raise Failed(self.step.id, None if record is _NO_RECORD else preview(record), repr(error)) from error

    def each(self, record: Any, results: Iterable[Any] | None) -> Iterator[Any]:
        if results is None:
            return
        iterator = self.call(record, iter, results)
        while True:
            try:
                result = self.call(record, next, iterator)
            except StopIteration:
                return
            yield result

    def emit_each(self, record: Any, results: Iterable[Any] | None, timestamp: int | None) -> None:
        """Emit the results of a process function, with its side outputs."""
        for result in self.each(record, results):
            if type(result) is tuple and len(result) == 2 and isinstance(result[0], OutputTag):
                self.emit(result[1], timestamp, result[0].tag_id)
            else:
                self.emit(result, timestamp)

    def key_of(self, value: Any) -> Any:
        assert self.step.key is not None, "keyed"
        return self.call(value, function_named(self.step.key), value)


_NO_RECORD: Final = object()


def _copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


class _Source(_Operator):
    def emit_all(self) -> None:
        raise NotImplementedError


class _Collection(_Source):
    def emit_all(self) -> None:
        for record in _copied(self.step.records):
            self.emit(record, None)


class _SourceFunction(_Source):
    """Emits on a thread of its own, which may be ahead of the task: a function behind it that fails does not stop it at
    once.
    """

    def emit_all(self) -> None:
        # Whether it is a record; the record; its timestamp, or the timestamp of the watermark.
        self.emitted: list[tuple[bool, Any, int | None]] = []
        failure: Failed | None = None
        try:
            self.call(_NO_RECORD, self.function.run, self)
        except Failed as raised:
            failure = raised
        for is_record, value, timestamp in self.emitted:
            if is_record:
                self.emit(value, timestamp)
            elif timestamp is not None:
                self.watermark(timestamp)
        if failure is not None:
            raise failure

    def taken(self, value: Any) -> Any:
        """Return a copy, which goes on: the function may change the record."""
        return _copied(value)

    # the SourceContext

    def collect(self, value: Any) -> None:
        self.emitted.append((True, self.taken(value), None))

    def collect_with_timestamp(self, value: Any, timestamp: int) -> None:
        self.emitted.append((True, self.taken(value), timestamp))

    def emit_watermark(self, timestamp: int) -> None:
        self.emitted.append((False, None, timestamp))


class _Map(_Operator):
    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        self.emit(self.call(value, self.function.map, value), timestamp)


class _Filter(_Operator):
    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        if self.call(value, self.function.filter, value):
            self.emit(value, timestamp)


class _FlatMap(_Operator):
    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        for result in self.each(value, self.call(value, self.function.flat_map, value)):
            self.emit(result, timestamp)


class _Context:
    """The context of process functions; the timer service, too."""

    def __init__(self, operator: "_Process", key: Any, timestamp: int | None) -> None:
        self._operator = operator
        self._key = key
        self._timestamp = timestamp

    def timestamp(self) -> int | None:
        return self._timestamp

    def get_current_key(self) -> Any:
        return self._key

    def timer_service(self) -> "_Context":
        return self

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._operator.register(timestamp, self._key)


class _Process(_Operator):
    def prepare(self) -> None:
        self.timers: list[tuple[int, int, Any]] = []
        self.numbers = itertools.count()

    def register(self, timestamp: int, key: Any) -> None:
        heapq.heappush(self.timers, (timestamp, next(self.numbers), key))

    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        key = None if self.step.key is None else self.key_of(value)
        self.emit_each(
            value, self.call(value, self.function_for(number), value, _Context(self, key, timestamp)), timestamp
        )

    def function_for(self, number: int) -> Callable[..., Any]:
        found: Callable[..., Any] = self.function.process_element
        return found

    def watermark(self, timestamp: int) -> None:
        self.current_watermark = timestamp
        while self.timers and self.timers[0][0] <= timestamp:
            fired, _, key = heapq.heappop(self.timers)
            self.emit_each(
                _NO_RECORD, self.call(_NO_RECORD, self.function.on_timer, fired, _Context(self, key, fired)), fired
            )
        self.task.emit_watermark(self.step, timestamp)


class _CoProcess(_Process):
    def function_for(self, number: int) -> Callable[..., Any]:
        found: Callable[..., Any] = (self.function.process_element1, self.function.process_element2)[number]
        return found


class _Reduce(_Operator):
    def prepare(self) -> None:
        self.results: dict[Any, Any] = {}

    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        key = self.key_of(value)
        exact = (type(key), key)
        if exact in self.results:
            self.results[exact] = self.call(value, self.joined, self.results[exact], value)
        else:
            self.results[exact] = self.first(key, value)
        self.emit(self.results[exact], timestamp)

    def joined(self, so_far: Any, value: Any) -> Any:
        return self.function.reduce(so_far, value)

    def first(self, key: Any, value: Any) -> Any:
        return value


class _Aggregate(_Reduce):
    """An aggregation of tuples: the sum, the smallest or the largest of a field."""

    def made(self, call: Call) -> Any:
        return call

    def first(self, key: Any, value: Any) -> Any:
        return (key, 1) if self.function.name == "count" else value

    def joined(self, so_far: Any, value: Any) -> Any:
        name = self.function.name
        if name == "count":
            return (so_far[0], so_far[1] + 1)
        [at] = self.function.arguments
        if name == "sum":
            return (*so_far[:at], so_far[at] + value[at], *so_far[at + 1 :])
        if not (value[at] < so_far[at] if name.startswith("min") else value[at] > so_far[at]):
            return so_far
        return value if name.endswith("_by") else (*so_far[:at], value[at], *so_far[at + 1 :])


class _Async(_Operator):
    """The head of its task: coroutines are called for the records to come, too, before the results of one go on."""

    def begin(self, records: list[Any]) -> None:
        """Call the coroutine for each record."""
        self.outcomes = deque(self.outcome(record) for record in records)

    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        outcome = self.outcomes.popleft()
        if isinstance(outcome, Failed):
            raise outcome
        for result in outcome:
            self.emit(result, timestamp)

    def outcome(self, record: Any) -> "list[Any] | Failed":
        coroutine = self.function.async_invoke(record)
        try:
            self.call(record, coroutine.send, None)
        except Failed as failure:
            return failure
        except StopIteration as end:
            return [self.taken(result) for result in end.value]
        raise AssertionError("the coroutines of this package never wait")

    def taken(self, value: Any) -> Any:
        """Return a copy, which goes on: the coroutine may change its result."""
        return _copied(value)


class _EventTime(_Operator):
    def prepare(self) -> None:
        self.generator = None if self.step.watermarks is None else self.made(self.step.watermarks)()
        self.last = MIN_TIMESTAMP
        self.said: list[int] = []

    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        assigned = self.call(
            value, self.function.extract_timestamp, value, MIN_TIMESTAMP if timestamp is None else timestamp
        )
        self.emit(value, assigned)
        if self.generator is not None:
            self.call(value, self.generator.on_event, value, assigned, self)
            for said in self.said:
                self.advance(said)
            self.said = []

    def emit_watermark(self, timestamp: int) -> None:
        """The generator says so."""
        self.said.append(timestamp)

    def watermark(self, timestamp: int) -> None:
        """Drop a watermark of the input, but for its end."""
        if timestamp == MAX_TIMESTAMP:
            self.advance(timestamp)

    def advance(self, timestamp: int) -> None:
        if timestamp > self.last:
            self.last = timestamp
            super().watermark(timestamp)


class _CoMap(_Operator):
    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        result = self.call(value, (self.function.map1, self.function.map2)[number], value)
        if result is not None:
            self.emit(result, timestamp)


class _CoFlatMap(_Operator):
    def receive(self, number: int, value: Any, timestamp: int | None) -> None:
        function = (self.function.flat_map1, self.function.flat_map2)[number]
        for result in self.each(value, self.call(value, function, value)):
            self.emit(result, timestamp)


_KINDS: Final[dict[Kind, type[_Operator]]] = {
    Kind.COLLECTION: _Collection,
    Kind.SOURCE: _SourceFunction,
    Kind.MAP: _Map,
    Kind.FILTER: _Filter,
    Kind.FLAT_MAP: _FlatMap,
    Kind.PROCESS: _Process,
    Kind.KEYED_PROCESS: _Process,
    Kind.REDUCE: _Reduce,
    Kind.AGGREGATE: _Aggregate,
    Kind.ASYNC: _Async,
    Kind.EVENT_TIME: _EventTime,
    Kind.CO_MAP: _CoMap,
    Kind.CO_FLAT_MAP: _CoFlatMap,
    Kind.CO_PROCESS: _CoProcess,
    Kind.KEYED_CO_PROCESS: _CoProcess,
}
