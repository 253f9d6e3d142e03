"""The job of the chaos runs: a keyed shuffle, a union, timers of both kinds, broadcast state and a second shuffle.

Side:       task.  Runs in TaskManagers.
Invariants: its results do not depend on the order in which records of different inputs meet.
"""

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flowlet.common import Encoder, WatermarkStrategy
from flowlet.common.typeinfo import Types
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    CheckpointedFunction,
    CheckpointListener,
    DataStream,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
    TimeDomain,
)
from flowlet.datastream.connectors import BucketAssigner, FileSink, RollingPolicy, Source
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flowlet.records import Chunk
from tests.chaos.chaos_generator import NUM_KEYS, WINDOW_MS, Result, Scale, Tally, digest, record, rule

RECORD: Final = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG(), Types.LONG(), Types.STRING()])
RULE: Final = Types.TUPLE([Types.LONG(), Types.LONG()])
RESULT: Final = Types.TUPLE([Types.STRING(), *[Types.LONG()] * 6])
RULES: Final = MapStateDescriptor("rules", Types.LONG(), Types.LONG())
_BALLAST_BYTES: Final = 4096  # per key: so the state of a subtask is a file of its own
_FLUSH_MS: Final = 100
_ROLLING: Final = RollingPolicy.default_rolling_policy(
    part_size=64 * 1024, rollover_interval=700, inactivity_interval=400
)
_BATCH: Final = 20
_DRIP_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Stage:
    """The folder in which a run and its functions meet.

    ``hurry``: the sources pause no longer.  ``traps``: the function that finds the one of its name dies or raises.
    """

    folder: Path

    @property
    def hurry(self) -> Path:
        return self.folder / "hurry"

    @property
    def results(self) -> Path:
        """The folder of the files that the job writes."""
        return self.folder / "results"

    def set_trap(self, name: str) -> None:
        """Let the next function that asks fall into it."""
        for former in self.folder.glob(f"sprung-{name}-*"):
            former.unlink()
        (self.folder / f"trap-{name}").touch()

    def has_sprung(self, name: str) -> int | None:
        """The id of the process that fell into it, or None if no process has yet."""
        found = next(iter(self.folder.glob(f"sprung-{name}-*")), None)
        return None if found is None else int(found.name.rpartition("-")[2])

    def springs(self, name: str) -> bool:
        """Whether a trap was set; one caller is told."""
        try:
            os.rename(self.folder / f"trap-{name}", self.folder / f"sprung-{name}-{os.getpid()}")
        except FileNotFoundError:
            return False
        return True

    def die_in(self, place: str) -> None:
        """End this process at once if a trap says so."""
        if self.springs(f"die-in-{place}"):
            os.kill(os.getpid(), signal.SIGKILL)

    def raise_in(self, place: str) -> None:
        """Raise if a trap says so."""
        if self.springs(f"raise-in-{place}"):
            raise RuntimeError(f"planned: in {place}")


class _PacedSource(SourceFunction):
    """A source that emits some records at a time, with pauses until it is told to hurry."""

    def __init__(self, scale: Scale, source: int, stage: Stage, pause_s: float) -> None:
        self._scale = scale
        self._source = source
        self._stage = stage
        self._pause_s = pause_s
        self._next = 0

    def _batches(self, ctx: SourceContext) -> Iterator[int]:
        """The end of each batch; the last records drip until it may hurry, so that records flow as long as the run has
        plans.
        """
        last = self._scale.num_records
        is_hurrying = False
        while self._next < last and not ctx.is_cancelled:
            is_hurrying = is_hurrying or self._stage.hurry.exists()
            is_dripping = not is_hurrying and self._next > last * 3 // 4
            yield min(last, self._next + (1 if is_dripping else _BATCH))
            if not is_hurrying:
                time.sleep(_DRIP_S if is_dripping else self._pause_s)

    def _emit(self, ctx: SourceContext) -> None:
        ctx.collect_with_timestamp(record(self._scale.seed, self._source, self._next), self._next)
        self._next += 1


class CheckpointedRecords(_PacedSource, CheckpointedFunction):
    """A source whose position is in list state, and changes under the checkpoint lock."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._position = context.get_operator_state_store().get_list_state(
            ListStateDescriptor("position", Types.LONG())
        )
        for position in self._position:
            self._next = position

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._position.update([self._next])

    def run(self, ctx: SourceContext) -> None:
        for end in self._batches(ctx):
            with ctx.get_checkpoint_lock():
                while self._next < end:
                    self._emit(ctx)
                ctx.emit_watermark(self._next - 1)
        with ctx.get_checkpoint_lock():
            ctx.emit_watermark(self._scale.end_ms)


class ReplayableRecords(_PacedSource):
    """Goes on behind the position that it marked."""

    def restore_position(self, position: Any) -> None:
        self._next = position

    def run(self, ctx: SourceContext) -> None:
        for end in self._batches(ctx):
            while self._next < end:
                self._emit(ctx)
            ctx.mark_position(self._next)
            ctx.emit_watermark(self._next - 1)
        ctx.emit_watermark(self._scale.end_ms)


class RuleReader:
    """One rule at a time."""

    def __init__(self, scale: Scale, stage: Stage, pause_s: float) -> None:
        self._scale = scale
        self._stage = stage
        self._pause_s = pause_s
        self._next = 0

    def poll_chunk(self) -> Chunk | None:
        if self._next == self._scale.num_rules:
            return None
        if not self._stage.hurry.exists():
            time.sleep(self._pause_s)
            if self._next > self._scale.num_rules // 2:  # the rest comes at the end
                return Chunk([])
        self._next += 1
        return Chunk([rule(self._scale.seed, self._next - 1)])

    def snapshot_position(self) -> int:
        return self._next

    def restore_position(self, position: int) -> None:
        self._next = position

    def close(self) -> None:
        pass


class RuleSource(Source):
    """The broadcast stream."""

    def __init__(self, scale: Scale, stage: Stage, pause_s: float) -> None:
        self._parts = scale, stage, pause_s

    def create_reader(self, subtask: int, parallelism: int) -> RuleReader:
        return RuleReader(*self._parts)


class RuleTime(TimestampAssigner):
    """Rules are spread over the records' time."""

    def __init__(self, step_ms: int) -> None:
        self._step_ms = step_ms

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[0]) * self._step_ms


class CountAndRules(KeyedBroadcastProcessFunction, CheckpointedFunction, CheckpointListener):
    """Counts each key in windows and in all; passes records on; gives its counts at the end, and the rules that it
    knows.
    """

    def __init__(self, scale: Scale, stage: Stage) -> None:
        self._scale = scale
        self._stage = stage

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._subtasks = context.get_operator_state_store().get_list_state(ListStateDescriptor("calls", Types.LONG()))
        if context.is_restored():
            self._stage.die_in("restore")
            self._stage.raise_in("restore")

    def open(self, runtime_context: RuntimeContext) -> None:
        anything = Types.PICKLED_BYTE_ARRAY()
        self._tally = runtime_context.get_state(ValueStateDescriptor("tally", anything))
        self._window = runtime_context.get_state(ValueStateDescriptor("window", anything))
        self._pending = runtime_context.get_state(ValueStateDescriptor("pending", Types.LONG()))
        self._ballast = runtime_context.get_state(ValueStateDescriptor("ballast", anything))

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._subtasks.update([context.get_checkpoint_id()])
        self._stage.die_in("snapshot")
        self._stage.raise_in("snapshot")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._stage.die_in("notify")

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterable[Result]:
        source, key, number, check, _ = value
        assert value == record(self._scale.seed, source, number), f"the record {value} was changed on its way"
        self._stage.raise_in("element")
        tally = self._tally.value() or Tally()
        tally.add(check)
        self._tally.update(tally)
        if tally.count == 1:
            self._ballast.update(os.urandom(_BALLAST_BYTES))
            ctx.timer_service().register_event_time_timer(self._scale.end_ms)
        end = (number // WINDOW_MS + 1) * WINDOW_MS
        windows = self._window.value() or {}
        windows.setdefault(end, Tally()).add(check)
        self._window.update(windows)
        ctx.timer_service().register_event_time_timer(end)
        self._pending.update((self._pending.value() or 0) + 1)
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer((now // _FLUSH_MS + 1) * _FLUSH_MS)
        yield "record", source, key, number, check, 0, 0

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterable[Result]:
        ctx.get_broadcast_state(RULES).put(*value)
        return ()

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Result]:
        self._stage.raise_in("timer")
        key = ctx.get_current_key()
        is_end = ctx.time_domain() is TimeDomain.EVENT_TIME and timestamp == self._scale.end_ms
        if is_end or ctx.time_domain() is TimeDomain.PROCESSING_TIME:
            pending = self._pending.value() or 0
            self._pending.update(0)
            yield "flush", key, pending, 0, 0, 0, 0
        if ctx.time_domain() is TimeDomain.EVENT_TIME:
            windows = self._window.value() or {}
            window = windows.pop(timestamp, None)
            self._window.update(windows)
            if window is not None:
                yield "window", key, timestamp, window.count, window.total, 0, 0
        if is_end:
            tally = self._tally.value()
            rules = 0
            for number, value in ctx.get_broadcast_state(RULES).items():
                rules ^= digest(number, value)
            yield "total", key, tally.count, tally.total, tally.squares, tally.hashes, rules


class CheckOrder(KeyedProcessFunction):
    """Checks, behind a second shuffle, that the records of a source come in their order, whatever fails."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._last = runtime_context.get_state(ValueStateDescriptor("last", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Result, ctx: KeyedProcessFunction.Context) -> Iterable[Result]:
        if value[0] == "record":
            _, source, key, number, *_ = value
            last = self._last.value() or {}
            assert last.get((source, key), -1) < number, (
                f"source {source}, key {key}: {number} came after {last[source, key]}"
            )
            last[source, key] = number
            self._last.update(last)
        yield value


def to_line(result: Result) -> str:
    return json.dumps(result)


def read_files(folder: Path) -> Iterator[Result]:
    """Yield the results that the file sink has committed, from files whose names do not begin with a dot."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            yield from (tuple(json.loads(line)) for line in file.read_text(encoding="ascii").splitlines())


def build(env: StreamExecutionEnvironment, scale: Scale, stage: Stage, seconds: float) -> DataStream:
    """The results of the job; its sources take ``seconds`` for three quarters of their records, unless they are told to
    hurry.
    """
    pause_s = seconds / (scale.num_records * 3 / 4 / _BATCH)
    first = env.add_source(CheckpointedRecords(scale, 0, stage, pause_s), "checkpointed", RECORD).set_parallelism(1)
    second = env.add_source(ReplayableRecords(scale, 1, stage, pause_s), "replayable", RECORD).set_parallelism(1)
    step_ms = max(1, scale.num_records // scale.num_rules)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(RuleTime(step_ms))
    rules = env.from_source(
        RuleSource(scale, stage, seconds / scale.num_rules), strategy, "rules", RULE
    ).set_parallelism(1)
    counted = (
        first.union(second)
        .key_by(lambda each: each[1], Types.LONG())
        .connect(rules.broadcast(RULES))
        .process(CountAndRules(scale, stage), output_type=RESULT)
        .name("count and rules")
        .uid("count-and-rules")
    )
    by_other_key = counted.key_by(
        lambda each: (each[2] if each[0] == "record" else each[1]) % (NUM_KEYS - 2), Types.LONG()
    )
    in_order = by_other_key.process(CheckOrder(), output_type=RESULT).name("check order").uid("check-order")
    files = FileSink.for_row_format(str(stage.results), Encoder.simple_string_encoder())
    in_order.map(to_line, output_type=Types.STRING()).sink_to(
        files.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).with_rolling_policy(_ROLLING).build()
    ).uid("files")
    return in_order
