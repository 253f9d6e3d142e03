"""A plain interpreter of windows: record by record, in dictionaries, without code of the operator.

A window holds the list of its records.  Functions are applied to that list whenever the window is evaluated.

Side:       pure.
Source:     Flink's documentation of windows, and PyFlink 2.3: the timestamps of results, and that a window gets no end
            at a record that evaluates it while it is empty.  Flink ``InternalTimerServiceImpl``: after a restart there
            is no watermark, and the first one fires what is due.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.windows.window_cases import EVENT, MAX_WATERMARK, PROCESSING, Advance, Case, Records, Restart

NO_WATERMARK = -(2**63)
Span = tuple[Any, ...]  # ("time", start, end), ("count", number) or ("global",)


@dataclass
class Pane:
    """The content of one window of one key."""

    records: list[tuple[Any, int]] = field(default_factory=list)  # record and timestamp
    num: int = 0  # of the trigger: records or sum
    fire_time: int | None = None  # of the trigger
    evaluations: int = 0  # of the stateful function


@dataclass
class Outcome:
    results: dict[Any, list[tuple[Any, int | None]]] = field(default_factory=dict)
    late: dict[Any, list[tuple[Any, int | None]]] = field(default_factory=dict)
    num_dropped: int = 0


def last_moment(span: Span) -> int:
    return int(span[2]) - 1 if span[0] == "time" else MAX_WATERMARK


def touches(one: Span, other: Span) -> bool:
    return bool(one[1] <= other[2] and other[1] <= one[2])


class Reference:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.times = {EVENT: NO_WATERMARK, PROCESSING: 0}
        self.panes: dict[Any, dict[Span, Pane]] = {}
        self.timers: dict[str, list[tuple[int, Any, Span]]] = {EVENT: [], PROCESSING: []}
        self.counts: dict[Any, int] = {}
        self.evaluations: dict[Any, int] = {}
        self.outcome = Outcome()

    def run(self) -> Outcome:
        for step in self.case.steps:
            match step:
                case Records():
                    for record, timestamp in zip(step.records, step.timestamps, strict=True):
                        self._on_record(record[0] if self.case.is_keyed else 0, record, timestamp)
                case Advance():
                    self._advance(step.domain, step.time)
                case Restart():
                    self._restart(step.lag)
        return self.outcome

    # ---------------------------------------------------------------- time

    def _advance(self, domain: str, time: int) -> None:
        self.times[domain] = max(self.times[domain], time)
        while True:
            now = self.times[domain]
            due = [timer for timer in self.timers[domain] if timer[0] <= now]
            if not due:
                return
            timer = min(due, key=lambda each: each[0])  # of equal ones the first
            self.timers[domain].remove(timer)
            self._on_timer(domain, *timer)

    def _restart(self, lag: int | None) -> None:
        """Watermarks are no state: the sources give them again, and timers that are due fire with the first one."""
        watermark, self.times[EVENT] = self.times[EVENT], NO_WATERMARK
        if watermark != NO_WATERMARK and lag is not None:
            self._advance(EVENT, watermark - lag)

    def _register(self, domain: str, time: int, key: Any, span: Span) -> None:
        if (time, key, span) not in self.timers[domain]:
            self.timers[domain].append((time, key, span))

    def _delete(self, domain: str, time: int, key: Any, span: Span) -> None:
        if (time, key, span) in self.timers[domain]:
            self.timers[domain].remove((time, key, span))

    # ---------------------------------------------------------------- records

    def _on_record(self, key: Any, record: Any, timestamp: int) -> None:
        panes = self.panes.setdefault(key, {})
        was_taken = False
        for new in self._spans(key, record, timestamp):
            span = self._merged(key, panes, new) if self.case.assigner.merges else new
            if self._is_over(span):
                if self.case.assigner.merges:
                    panes.pop(span, None)
                continue
            was_taken = True
            pane = panes.setdefault(span, Pane())
            pane.records.append((record, timestamp))
            fires, purges = self._trigger_on_record(key, span, pane, record, timestamp)
            if fires and not self._evaluate(key, span, pane, timestamp):
                if purges:
                    pane.records.clear()
                continue
            if purges:
                pane.records.clear()
            if self._end(span) != MAX_WATERMARK:
                self._register(self.case.assigner.domain, self._end(span), key, span)
        if not was_taken and self.case.assigner.domain == EVENT and timestamp + self.case.lateness <= self.times[EVENT]:
            if self.case.has_late_output:
                self.outcome.late.setdefault(key, []).append((record, timestamp))
            else:
                self.outcome.num_dropped += 1

    def _spans(self, key: Any, record: Any, timestamp: int) -> list[Span]:
        assigner = self.case.assigner
        time = timestamp if assigner.domain == EVENT else self.times[PROCESSING]
        match assigner.kind:
            case "tumbling":
                start = (time - assigner.offset) // assigner.size * assigner.size + assigner.offset
                return [("time", start, start + assigner.size)]
            case "sliding":
                starts = [
                    each
                    for each in range(time, time - assigner.size, -1)
                    if (each - assigner.offset) % assigner.slide == 0
                ]
                return [("time", start, start + assigner.size) for start in starts]
            case "session":
                return [("time", time, time + assigner.size)]
            case "dynamic":
                return [("time", time, time + assigner.size + record[2] % 3)]
            case "count":
                number = self.counts.get(key, 0)
                self.counts[key] = number + 1
                slide = assigner.slide or assigner.size
                return [
                    ("count", each)
                    for each in range(number, -1, -1)
                    if each * slide <= number < each * slide + assigner.size
                ]
            case _:
                return [("global",)]

    def _end(self, span: Span) -> int:
        """Return the time at which the window is forgotten."""
        if self.case.assigner.domain == PROCESSING:
            return last_moment(span)
        return min(last_moment(span) + self.case.lateness, MAX_WATERMARK)

    def _is_over(self, span: Span) -> bool:
        return self.case.assigner.domain == EVENT and self._end(span) <= self.times[EVENT]

    def _merged(self, key: Any, panes: dict[Span, Pane], new: Span) -> Span:
        parts = [each for each in sorted(panes) if touches(each, new)]
        if not parts:
            panes[new] = Pane()
            return new
        whole: Span = ("time", min(each[1] for each in (*parts, new)), max(each[2] for each in (*parts, new)))
        if parts == [whole]:
            return whole
        merged = Pane()
        for part in parts:
            pane = panes[part]
            merged.records += pane.records
            merged.num += pane.num
            merged.fire_time = _earliest(merged.fire_time, pane.fire_time)
        self._trigger_on_merge(key, whole, merged)
        for part in parts:
            self._trigger_clear(key, part, panes.pop(part))
            self._delete(self.case.assigner.domain, self._end(part), key, part)
        panes[whole] = merged
        return whole

    # ---------------------------------------------------------------- timers

    def _on_timer(self, domain: str, time: int, key: Any, span: Span) -> None:
        panes = self.panes.setdefault(key, {})
        if self.case.assigner.merges and span not in panes:
            return
        pane = panes.setdefault(span, Pane())
        fires, purges = self._trigger_on_time(domain, time, key, span, pane)
        if fires:
            self._evaluate(key, span, pane, time)
        if purges:
            pane.records.clear()
        if domain == self.case.assigner.domain and time == self._end(span):
            self._trigger_clear(key, span, pane)
            del panes[span]

    def _evaluate(self, key: Any, span: Span, pane: Pane, timestamp: int) -> bool:
        if not pane.records:
            return False
        evictor = self.case.evictor
        if evictor is not None and not evictor.is_after:
            self._evict(pane)
        for result in self._results(key, span, pane):
            self.outcome.results.setdefault(key, []).append((result, timestamp))
        if evictor is not None and evictor.is_after:
            self._evict(pane)
        return True

    def _evict(self, pane: Pane) -> None:
        evictor = self.case.evictor
        assert evictor is not None
        records = pane.records
        if not records:
            return
        match evictor.kind:
            case "count":
                pane.records = records[-evictor.number :] if evictor.number else []
            case "time":
                newest = max(timestamp for _, timestamp in records)
                pane.records = [each for each in records if each[1] > newest - evictor.number]
            case _:
                last = records[-1][0][2]
                pane.records = [each for each in records if abs(each[0][2] - last) < evictor.number]

    def _results(self, key: Any, span: Span, pane: Pane) -> list[Any]:
        records = [record for record, _ in pane.records]
        ids = tuple(record[1] for record in records)
        watermark = self.times[EVENT]
        match self.case.function:
            case "reduce":
                return [(records[0][0], ids, records[-1][2])] if records else []
            case "aggregate":
                return [("aggregate", ids)]
            case "reduce_process":
                return [(key, span, (records[0][0], ids, records[-1][2]), watermark)] if records else []
            case "aggregate_apply":
                return [(key, span, ("aggregate", ids))]
            case "process":
                return [(key, span, ids, watermark), (key, len(ids))]
            case "apply":
                return [(key, span, ids)]
            case _:
                pane.evaluations += 1
                self.evaluations[key] = self.evaluations.get(key, 0) + 1
                per_window = 0 if self.case.assigner.merges else pane.evaluations
                return [(key, span, ids, per_window, self.evaluations[key])]

    # ---------------------------------------------------------------- triggers: (whether it fires, whether it purges)

    def _kind(self) -> str:
        trigger = self.case.trigger
        if trigger.kind != "default":
            return trigger.kind
        return {"count": "count", "global": "never"}.get(self.case.assigner.kind, self.case.assigner.domain)

    def _answer(self, fires: bool) -> tuple[bool, bool]:
        return fires, fires and self.case.trigger.purges

    def _trigger_on_record(self, key: Any, span: Span, pane: Pane, record: Any, timestamp: int) -> tuple[bool, bool]:
        end, domain = last_moment(span), self.case.trigger.domain
        match self._kind():
            case "event":
                return self._answer(self._wait_for_end(key, span))
            case "processing":
                self._register(PROCESSING, end, key, span)
                return False, False
            case "count":
                return self._answer(self._count(pane, 1, self.case.trigger.number or self.case.assigner.size))
            case "threshold":
                if domain == EVENT and self._wait_for_end(key, span):
                    return self._answer(fires=True)
                return self._answer(self._count(pane, record[2], self.case.trigger.number))
            case "continuous":
                if domain == EVENT and self._wait_for_end(key, span):
                    return self._answer(fires=True)
                if pane.fire_time is None:
                    self._next_fire(
                        key, span, pane, self._round_down(timestamp if domain == EVENT else self.times[PROCESSING])
                    )
                return False, False
            case _:
                return False, False

    def _wait_for_end(self, key: Any, span: Span) -> bool:
        if last_moment(span) <= self.times[EVENT]:
            return True
        self._register(EVENT, last_moment(span), key, span)
        return False

    @staticmethod
    def _count(pane: Pane, more: int, limit: int) -> bool:
        pane.num += more
        if pane.num < limit:
            return False
        pane.num = 0
        return True

    def _round_down(self, time: int) -> int:
        return time // self.case.trigger.number * self.case.trigger.number

    def _next_fire(self, key: Any, span: Span, pane: Pane, time: int) -> None:
        pane.fire_time = min(time + self.case.trigger.number, last_moment(span))
        self._register(self.case.trigger.domain, pane.fire_time, key, span)

    def _trigger_on_time(self, domain: str, time: int, key: Any, span: Span, pane: Pane) -> tuple[bool, bool]:
        match self._kind():
            case "event":
                return self._answer(domain == EVENT and time == last_moment(span))
            case "processing":
                return self._answer(domain == PROCESSING)
            case "threshold":
                return self._answer(domain == self.case.trigger.domain == EVENT and time == last_moment(span))
            case "continuous":
                if domain != self.case.trigger.domain:
                    return False, False
                if domain == EVENT and time == last_moment(span):
                    return self._answer(fires=True)
                if pane.fire_time != time:
                    return False, False
                self._next_fire(key, span, pane, time)
                return self._answer(fires=True)
            case _:
                return False, False

    def _trigger_on_merge(self, key: Any, span: Span, pane: Pane) -> None:
        end = last_moment(span)
        waits: dict[str, Callable[[], bool]] = {
            "event": lambda: end > self.times[EVENT],
            "threshold": lambda: self.case.trigger.domain == EVENT and end > self.times[EVENT],
        }
        kind = self._kind()
        if kind in waits and waits[kind]():
            self._register(EVENT, end, key, span)
        elif kind == "processing" and end > self.times[PROCESSING]:
            self._register(PROCESSING, end, key, span)
        elif kind == "continuous" and pane.fire_time is not None:
            self._register(self.case.trigger.domain, pane.fire_time, key, span)

    def _trigger_clear(self, key: Any, span: Span, pane: Pane) -> None:
        match self._kind():
            case "event" | "processing" as domain:
                self._delete(domain, last_moment(span), key, span)
            case "threshold":
                self._delete(EVENT, last_moment(span), key, span)
            case "continuous" if pane.fire_time is not None:
                self._delete(self.case.trigger.domain, pane.fire_time, key, span)
            case _:
                pass


def _earliest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
