"""Jobs with slow functions, one kind each; the functions report their calls and results through a file of shared
memory.

Side:  any; the functions run in a TaskManager.
"""

import asyncio
import ctypes
import itertools
import mmap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from flowlet.common import Duration, Time, WatermarkStrategy
from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    AsyncDataStream,
    AsyncFunction,
    DataStream,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    RuntimeContext,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import (
    DataGeneratorSource,
    NumberSequenceSource,
    Sink,
    SinkWriter,
    SinkWriterContext,
    SplitSource,
    WriterInitContext,
)
from flowlet.datastream.window import TumblingEventTimeWindows

_MAX_EMITTED: Final = 1 << 18
_BYTES: Final = 8
_BEGUN, _LAST_CALL, _NUM_EMITTED, _FIRST_EMITTED = range(4)


class Beats:
    """One function's report to the bench, in a file that both have in memory: numbers of 64 bits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory: mmap.mmap | None = None
        self._numbers: memoryview | None = None

    def __getstate__(self) -> Path:
        return self._path

    def __setstate__(self, path: Path) -> None:
        self.__init__(path)  # type: ignore[misc]  # a fresh one that opens the file when it is first used

    @classmethod
    @contextmanager
    def made(cls, path: Path) -> Iterator["Beats"]:
        """Open one with an empty file, which is removed at the end of the block."""
        path.write_bytes(bytes(_BYTES * (_FIRST_EMITTED + _MAX_EMITTED)))
        beats = cls(path)
        try:
            yield beats
        finally:
            beats.close()
            path.unlink(missing_ok=True)

    @property
    def numbers(self) -> memoryview:
        """The shared memory."""
        if self._numbers is None:
            with self._path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 0)
            self._numbers = memoryview(self._memory).cast("q")
        return self._numbers

    def close(self) -> None:
        """Give the memory back."""
        if self._numbers is not None and self._memory is not None:
            self._numbers.release()
            self._memory.close()
            self._numbers = self._memory = None

    # -- in the function

    def call(self) -> None:
        """Note the time at which a call begins."""
        numbers = self.numbers
        numbers[_BEGUN] = 1
        numbers[_LAST_CALL] = time.monotonic_ns()

    def emit(self) -> int:
        """Note that a result is about to be emitted; return the time, which is the result."""
        numbers = self.numbers
        now, number = time.monotonic_ns(), numbers[_NUM_EMITTED]
        if number < _MAX_EMITTED:
            numbers[_FIRST_EMITTED + number] = now
        numbers[_NUM_EMITTED] = number + 1
        return now

    # -- in the bench

    @property
    def has_begun(self) -> bool:
        """Whether the function was called."""
        return bool(self.numbers[_BEGUN])

    @property
    def last_call_ns(self) -> int:
        """The time of the last call."""
        return int(self.numbers[_LAST_CALL])

    def emitted_at(self, number: int) -> int:
        """Return the time at which result ``number``, from 0, was emitted; 0: it was not, or its time is not known."""
        return int(self.numbers[_FIRST_EMITTED + number]) if number < _MAX_EMITTED else 0


@dataclass(frozen=True)
class Kind:
    """One job: ``unit_ms`` is the time of one record of its head, with all records that are made from it."""

    name: str
    build: Callable[[StreamExecutionEnvironment, Beats], DataStream]
    unit_ms: float
    has_results: bool = True
    limit_s: float = 10.0
    settle_s: float = 0.0  # how long after the first call it is known whether the job restarts
    stops_threads: bool = False  # whether no other thread of the process runs meanwhile
    # Whether seconds of records lie in front of each barrier, so that barriers have to overtake them.
    has_full_input: bool = False


def numbers(env: StreamExecutionEnvironment) -> DataStream:
    """Yield many numbers, as fast as they are taken."""
    return env.from_source(NumberSequenceSource(0, 10**9), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())


def sleep(duration_ms: float) -> None:
    """Wait without the interpreter's lock."""
    time.sleep(duration_ms / 1000)


def compute(duration_ms: float) -> None:
    """Hold the interpreter's lock as a loop of Python does."""
    end_ns = time.monotonic_ns() + int(duration_ms * 1e6)
    while time.monotonic_ns() < end_ns:
        pass


def hold_lock(duration_ms: float) -> None:
    """Hold the interpreter's lock as a library in C does that never releases it."""
    ctypes.PyDLL(None).usleep(int(duration_ms * 1000))


@dataclass
class Slow(MapFunction):
    """Takes its time for each record; ``num_quick`` records before take none."""

    beats: Beats
    spend: Callable[[float], None]
    duration_ms: float
    num_quick: int = 0

    def map(self, value: int) -> int:
        """Return the time of its end."""
        self.beats.call()
        if value >= self.num_quick:
            self.spend(self.duration_ms)
        return self.beats.emit()


@dataclass
class SlowOnce(MapFunction):
    """Takes a millisecond for each record; one of them holds the interpreter's lock for long."""

    beats: Beats
    at: int
    duration_ms: float

    def map(self, value: int) -> int:
        """Return the time of its end."""
        self.beats.call()
        if value == self.at:
            hold_lock(self.duration_ms)
        sleep(1)
        return self.beats.emit()


@dataclass
class SlowGenerator(FlatMapFunction):
    """Makes several results of each record, and takes its time for each."""

    beats: Beats
    num_results: int
    duration_ms: float

    def flat_map(self, value: int) -> Iterable[int]:
        """Yield the times of their ends."""
        for _ in range(self.num_results):
            self.beats.call()
            sleep(self.duration_ms)
            yield self.beats.emit()


@dataclass
class SlowSource(SourceFunction):
    """Emits one record at a time, and takes its time for each."""

    beats: Beats
    duration_ms: float

    def run(self, ctx: SourceContext) -> None:
        """Emit until the job is cancelled."""
        while not ctx.is_cancelled:
            self.beats.call()
            sleep(self.duration_ms)
            ctx.collect(self.beats.emit())


class SlowSplits(SplitSource):
    """A source with one endless split, whose iterator takes its time for each record."""

    is_bounded = False

    def __init__(self, beats: Beats, duration_ms: float) -> None:
        self._slow = Slow(beats, sleep, duration_ms)

    def create_splits(self, parallelism: int) -> dict[str, int]:
        """Return the numbers from 0 on."""
        return {"numbers": 0}

    def read_split(self, split: int, num_read: int) -> Iterator[int]:
        """Yield the numbers from the first one that was not read."""
        return map(self._slow.map, itertools.count(split + num_read))


@dataclass
class FewThenNothing(SourceFunction):
    """Emits some numbers at time 0, then a watermark far behind, then nothing."""

    number: int

    def run(self, ctx: SourceContext) -> None:
        """Emit until the job is cancelled."""
        for value in range(self.number):
            ctx.collect_with_timestamp(value, 0)
        ctx.emit_watermark(10**9)
        while not ctx.is_cancelled:
            sleep(10)


@dataclass
class SlowWindow(ProcessWindowFunction):
    """Takes its time for the window of each key."""

    beats: Beats
    duration_ms: float

    def process(self, key: int, context: ProcessWindowFunction.Context, elements: Iterable[int]) -> Iterable[int]:
        """Return the time of its end."""
        self.beats.call()
        sleep(self.duration_ms)
        return [self.beats.emit()]


@dataclass
class SlowTimers(KeyedProcessFunction):
    """Has a timer per key, all for one time, and takes its time for each."""

    beats: Beats
    duration_ms: float

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterable[int]:
        """Register the timer of the key: at the next full second but one."""
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() // 1000 * 1000 + 2000)
        return ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
        """Yield the time of its end."""
        self.beats.call()
        sleep(self.duration_ms)
        return [self.beats.emit()]


@dataclass
class SlowCalls(AsyncFunction):
    """Answers after a while."""

    beats: Beats
    duration_ms: float

    async def async_invoke(self, value: int) -> list[int]:
        """Return the time of its end."""
        self.beats.call()
        await asyncio.sleep(self.duration_ms / 1000)
        return [self.beats.emit()]


@dataclass
class SlowOpen(MapFunction):
    """Takes its time before the first record."""

    beats: Beats
    duration_ms: float

    def open(self, runtime_context: RuntimeContext) -> None:
        """Take it."""
        self.beats.call()
        sleep(self.duration_ms)

    def map(self, value: int) -> int:
        """Return the time."""
        sleep(1)
        return self.beats.emit()


class SlowWriter(SinkWriter[int]):
    """Takes its time for each record."""

    def __init__(self, beats: Beats, duration_ms: float) -> None:
        self._beats = beats
        self._duration_ms = duration_ms

    def write(self, value: int, context: SinkWriterContext) -> None:
        """Take it."""
        self._beats.call()
        sleep(self._duration_ms)

    def flush(self, *, end_of_input: bool) -> None:
        """Do nothing: no record waits here."""


@dataclass
class SlowSink(Sink):
    """Takes its time for each record."""

    beats: Beats
    duration_ms: float

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        """Return the writer of one subtask."""
        return SlowWriter(self.beats, self.duration_ms)


def mapped(
    env: StreamExecutionEnvironment, beats: Beats, *, spend: Callable[[float], None], ms: float, num_quick: int = 0
) -> DataStream:
    """Map in one task with the source."""
    return numbers(env).map(Slow(beats, spend, ms, num_quick), Types.LONG())


def behind_key_by(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Map in a task of its own, whose input is full."""
    return (
        numbers(env)
        .key_by(lambda value: value % 100, Types.LONG())
        .map(Slow(beats, sleep, 10), Types.LONG())
        .start_new_chain()
    )


def generated(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Give five results of each record."""
    return numbers(env).flat_map(SlowGenerator(beats, 5, 100), Types.LONG())


def from_slow_source(env: StreamExecutionEnvironment, beats: Beats, *, ms: float) -> DataStream:
    """Read from a slow source; no later operator is slow."""
    return env.add_source(SlowSource(beats, ms), type_info=Types.LONG()).map(lambda value: value, Types.LONG())


def from_data_generator(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Read from a source whose function makes each record slowly; no later operator is slow."""
    source = DataGeneratorSource(Slow(beats, sleep, 10).map, 10**9, type_info=Types.LONG())
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "generated").map(
        lambda value: value, Types.LONG()
    )


def from_splits(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Read from a source whose records come from an iterator of the user."""
    source = SlowSplits(beats, 10)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "splits", Types.LONG()).map(
        lambda value: value, Types.LONG()
    )


def fired_windows(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Fire a thousand windows that end together."""
    keyed = env.add_source(FewThenNothing(1000), type_info=Types.LONG()).key_by(lambda value: value, Types.LONG())
    return keyed.window(TumblingEventTimeWindows.of(Duration.of_seconds(1))).process(
        SlowWindow(beats, 10), Types.LONG()
    )


def fired_timers(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Fire a thousand timers that were set for one time."""
    keyed = env.add_source(FewThenNothing(1000), type_info=Types.LONG()).key_by(lambda value: value, Types.LONG())
    return keyed.process(SlowTimers(beats, 10), Types.LONG())


def asked(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Make two calls at a time."""
    return AsyncDataStream.ordered_wait(numbers(env), SlowCalls(beats, 100), Time.seconds(60), 2, Types.LONG())


def written(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Write into a slow sink; the client gets a stream without results."""
    read = numbers(env)
    read.sink_to(SlowSink(beats, 10))
    return read.filter(lambda value: value < 0)


def opened(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Use a function that needs three seconds before it begins."""
    return numbers(env).map(SlowOpen(beats, 3000), Types.LONG())


def locked(env: StreamExecutionEnvironment, beats: Beats) -> DataStream:
    """Hold the interpreter of the TaskManager for 15 s."""
    return numbers(env).map(SlowOnce(beats, 1000, 15_000), Types.LONG())


NOTHING: Final = Kind("nothing", partial(from_slow_source, ms=5), 5)
KINDS: Final = {
    kind.name: kind
    for kind in (
        *(Kind(f"sleep-{ms}", partial(mapped, spend=sleep, ms=ms), ms) for ms in (1, 10, 100)),
        *(Kind(f"compute-{ms}", partial(mapped, spend=compute, ms=ms), ms) for ms in (1, 10, 100)),
        Kind("slow-later", partial(mapped, spend=sleep, ms=100, num_quick=5000), 100),
        Kind("generator", generated, 500),
        Kind("source", partial(from_slow_source, ms=100), 100),
        Kind("data-generator", from_data_generator, 10),
        Kind("splits", from_splits, 10),
        Kind("key-by", behind_key_by, 10, has_full_input=True),
        Kind("windows", fired_windows, 10),
        Kind("timers", fired_timers, 10),
        Kind("async", asked, 0),
        Kind("sink", written, 10, has_results=False),
        Kind("open", opened, 3000),
        Kind("lock", locked, 15_000, limit_s=25.0, settle_s=18.0, stops_threads=True),
    )
}
