"""Functions with more than a record: process functions, those of keys, of two streams, and coroutines.

Invariants: those of ``record_functions``.
"""

from collections.abc import Iterator
from typing import Any

from flowlet.datastream.functions import (
    AsyncFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    ReduceFunction,
)
from tests.differential.worlds import TAGS, TICK_MS, Boom, Failing, Logged, absorb, size, touch


class _Process(Logged, ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        self.calls += 1
        self.see(value, ctx.timestamp())
        return self.result(value)


class EmitTouched(_Process):
    def result(self, value: Any) -> Iterator[Any]:
        yield value
        touch(value)
        self.see("resumed", value)
        yield value
        touch(value)


class EmitKept(_Process):
    """Emits the record before, changed, and then this one."""

    def result(self, value: Any) -> Iterator[Any]:
        if self.calls > 1:
            touch(self.last)
            yield self.last
        self.last = value
        yield value


class EmitOneList(_Process):
    def result(self, value: Any) -> Any:
        self.found.append(size(value))
        return [self.found]


class EmitNothing(_Process):
    def result(self, value: Any) -> Any:
        touch(value)


class EmitBySide(_Process):
    """Emits one object to the main output and to the side outputs, changed in between."""

    def result(self, value: Any) -> Iterator[Any]:
        yield TAGS["left"], value
        touch(value)
        yield value
        touch(value)
        yield TAGS["right"], value
        self.see("resumed", value)


class EmitListBySide(_Process):
    """Returns one object for the main output and the side outputs in a list, which is made before its first result goes
    on.
    """

    def result(self, value: Any) -> Any:
        return [value, (TAGS["left"], value), (TAGS["right"], self.calls), (value, self.calls)]


class EmitThenFail(Failing, _Process):
    def result(self, value: Any) -> Iterator[Any]:
        yield value
        yield TAGS["left"], value
        self.fail_in("process", value)


class _KeyedProcess(Logged, KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.calls += 1
        self.see(ctx.get_current_key(), value, ctx.timestamp())
        return self.result(value, ctx)


class DictPerKey(_KeyedProcess):
    def result(self, value: Any, ctx: Any) -> Iterator[Any]:
        state = self.entries.setdefault(ctx.get_current_key(), {"n": 0})
        state["n"] += 1
        state["last"] = size(value)
        yield state


class LastPerKey(_KeyedProcess):
    """Emits the record before of its key, changed, beside this one."""

    def result(self, value: Any, ctx: Any) -> Any:
        last = self.entries.get(ctx.get_current_key())
        touch(last)
        self.entries[ctx.get_current_key()] = value
        return [value, (TAGS["left"], last), last] if last is not None else [value]


class KeptUntilTimer(_KeyedProcess):
    """Sets a timer for each record, and emits the records of the key when it fires."""

    def prepare(self, ticks: int) -> None:
        self.ticks = ticks

    def result(self, value: Any, ctx: Any) -> Iterator[Any]:
        timestamp, timers = ctx.timestamp(), ctx.timer_service()
        self.see("watermark", timers.current_watermark())
        kept = self.entries.setdefault(ctx.get_current_key(), [])
        kept.append(value)
        del kept[:-3]
        if timestamp is not None:
            timers.register_event_time_timer(timestamp + self.ticks * TICK_MS + self.calls)
        yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        kept = self.entries.get(ctx.get_current_key(), [])
        self.see(
            "timer", timestamp, ctx.get_current_key(), ctx.timestamp(), ctx.timer_service().current_watermark(), kept
        )
        for record in kept:
            touch(record)
            yield record
        yield kept


class TimerFails(KeptUntilTimer):
    def prepare(self, ticks: int, at: int = 1) -> None:
        super().prepare(ticks)
        self.at = at
        self.fired = 0

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        self.fired += 1
        for found in super().on_timer(timestamp, ctx):
            yield found
            if self.fired == self.at:
                raise Boom(f"on_timer, call {self.fired}")


class KeyedFails(Failing, _KeyedProcess):
    def result(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value
        self.fail_in("keyed process")


class _Reduce(Logged, ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        self.calls += 1
        self.see(value1, value2)
        return self.result(value1, value2)


class AbsorbInPlace(_Reduce):
    def result(self, so_far: Any, record: Any) -> Any:
        return absorb(so_far, record)


class TouchBoth(_Reduce):
    def result(self, so_far: Any, record: Any) -> Any:
        touch(so_far)
        touch(record)
        return record


class FreshPair(_Reduce):
    def result(self, so_far: Any, record: Any) -> Any:
        return (size(so_far), size(record))


class OneForAllKeys(_Reduce):
    def result(self, so_far: Any, record: Any) -> Any:
        self.found.append(size(record))
        return self.found


class ReduceFails(Failing, _Reduce):
    def result(self, so_far: Any, record: Any) -> Any:
        self.fail_in("reduce", record)
        return absorb(so_far, record)


class _Async(Logged, AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        self.calls += 1
        self.see(value)
        results: list[Any] = self.result(value)
        return results


class Answer(_Async):
    def result(self, value: Any) -> list[Any]:
        return [value, self.calls]


class AnswerOneList(_Async):
    def result(self, value: Any) -> list[Any]:
        self.found.append(size(value))
        return [self.found]


class AnswerKept(_Async):
    def result(self, value: Any) -> list[Any]:
        touch(self.last)
        self.last = value
        return [value]


class NoAnswer(_Async):
    def result(self, value: Any) -> list[Any]:
        return [] if self.calls % 3 == 0 else [(self.calls, value)]


class AnswerFails(Failing, _Async):
    def result(self, value: Any) -> list[Any]:
        self.fail_in("async")
        return [value]


class _CoMap(Logged, CoMapFunction):
    def map1(self, value: Any) -> Any:
        return self._map("map1", value)

    def map2(self, value: Any) -> Any:
        return self._map("map2", value)

    def _map(self, method: str, value: Any) -> Any:
        self.calls += 1
        self.see(method, value)
        return self.result(value)


class CoGrowing(_CoMap):
    def result(self, value: Any) -> Any:
        self.found.append(size(value))
        return self.found


class CoTouch(_CoMap):
    def result(self, value: Any) -> Any:
        touch(self.last)
        self.last = value
        return value


class CoSometimesNone(_CoMap):
    def result(self, value: Any) -> Any:
        return None if self.calls % 3 == 0 else value


class CoMapFails(Failing, _CoMap):
    def result(self, value: Any) -> Any:
        self.fail_in("co-map")
        return value


class CoYield(Logged, CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Iterator[Any]:
        return self._flat_map("flat_map1", value)

    def flat_map2(self, value: Any) -> Iterator[Any]:
        return self._flat_map("flat_map2", value)

    def _flat_map(self, method: str, value: Any) -> Iterator[Any]:
        self.see(method, value)
        found: list[Any] = [size(value)]
        yield found
        touch(found)
        self.see("resumed", found)
        yield found


class CoEmit(Logged, CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        return self._process("process1", value, ctx)

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        return self._process("process2", value, ctx)

    def _process(self, method: str, value: Any, ctx: Any) -> Iterator[Any]:
        self.see(method, value, ctx.timestamp())
        touch(self.last)
        yield TAGS["left"], self.last
        self.last = value
        yield value


class KeyedCoEmit(Logged, KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        return self._process("process1", value, ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        return self._process("process2", value, ctx)

    def _process(self, method: str, value: Any, ctx: Any) -> Iterator[Any]:
        self.see(method, ctx.get_current_key(), value)
        state = self.entries.setdefault(ctx.get_current_key(), [])
        state.append(size(value))
        yield state
        yield value
