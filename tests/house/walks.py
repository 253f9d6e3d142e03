"""Draw the house in five walks: ``python -m tests.house.walks`` runs small jobs, and writes what they pass through into
``docs/maintainers/five-walks.md``.

A walk is what happens between two moments of a real job, in one process with two TaskManagers and TCP between them: a
record from its source to the function of another task, a credit, a barrier, a deployment, an access to state.  Every
call of a function of ours is seen.  A *stay* is a run of calls of one thread in one room; the page shows each room that
is entered, by which function, and how many functions are called there.

Absent: times.  A walk that is traced takes ten times as long.
"""

import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final

from flowlet.common import Configuration, Types
from flowlet.datastream import KeyedProcessFunction
from flowlet.datastream.functions import RuntimeContext, SourceFunction
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.testing import MiniCluster

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "maintainers" / "five-walks.md"
WAIT_S: Final = 60.0
MOST_DRAWN: Final = 24  # rooms in a picture


@dataclass(frozen=True)
class Call:
    """A function of ours, and the thread that called it."""

    thread: str
    room: str
    function: str


@dataclass
class Stay:
    """Calls of one thread in one room, one after the other."""

    thread: str
    room: str
    entry: str
    functions: set[str] = field(default_factory=set)


@dataclass
class Tracer:
    """Sees every call of every thread that was started after ``installed``; keeps those while it is on."""

    calls: list[Call] = field(default_factory=list)
    is_on: bool = False
    starts_at: str = ""  # a function; empty: ``start`` is called
    ends_at: str = ""
    has_ended: threading.Event = field(default_factory=threading.Event)

    def seen(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call, as a profile function."""
        if event != "call" or not (self.is_on or self.starts_at):
            return
        call = _call_of(frame)
        if call is None:
            return
        if self.starts_at and call.function.endswith(self.starts_at):
            self.starts_at, self.is_on = "", True
        if self.is_on:
            self.calls.append(call)
            if self.ends_at and call.function.endswith(self.ends_at):
                self.stop()

    def start(self) -> None:
        self.calls.clear()
        self.has_ended.clear()
        self.is_on = True

    def stop(self) -> None:
        self.is_on, self.ends_at = False, ""
        self.has_ended.set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Record calls in this thread and in threads that it starts."""
        threading.setprofile(self.seen)
        sys.setprofile(self.seen)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


_TRACER: Final = Tracer()
_ROLES: Final = (
    (re.compile(r"^task .*Source"), "the source's task"),
    (re.compile(r"^task "), "the function's task"),
    (re.compile(r"^snapshots"), "snapshot pool"),
    (re.compile(r"^flowlet-client|loop"), "loop"),
    (re.compile(r"^MainThread"), "program"),
    (re.compile(r"^source "), "source function"),
)


def _call_of(frame: FrameType) -> Call | None:
    path = frame.f_code.co_filename
    if not path.startswith(str(ROOT)):
        return None
    parts = Path(path).relative_to(ROOT).with_suffix("").parts
    if parts[0] not in ("flowlet", "netstack"):
        return None
    name = threading.current_thread().name
    thread = next((role for pattern, role in _ROLES if pattern.search(name)), "another thread")
    room = "/".join(parts[:2]) if parts[0] == "netstack" or len(parts) > 2 else parts[0]
    return Call(thread, room.removeprefix("flowlet/"), frame.f_code.co_qualname)


def stays_of(calls: Iterable[Call]) -> list[Stay]:
    """Return runs of calls of one thread in one room, in the order in which they begin."""
    stays: list[Stay] = []
    for call in calls:
        if not stays or (stays[-1].thread, stays[-1].room) != (call.thread, call.room):
            stays.append(Stay(call.thread, call.room, call.function))
        stays[-1].functions.add(call.function)
    return stays


def first_visits(stays: Sequence[Stay]) -> list[Stay]:
    """Return each room of each thread once, where it is entered first, with all functions that are called there."""
    by_room: dict[tuple[str, str], Stay] = {}
    for stay in stays:
        first = by_room.setdefault((stay.thread, stay.room), Stay(stay.thread, stay.room, stay.entry))
        first.functions.update(stay.functions)
    return list(by_room.values())


def drawn(visits: Sequence[Stay]) -> str:
    """Return a picture of the rooms of each thread, and the order in which they are entered; of many, those where most
    functions are called.
    """
    fewest = sorted((len(visit.functions) for visit in visits), reverse=True)[:MOST_DRAWN][-1]
    visits = [visit for visit in visits if len(visit.functions) >= fewest]
    nodes: dict[tuple[str, str], str] = {}
    for visit in visits:
        nodes.setdefault((visit.thread, visit.room), f"r{len(nodes)}")
    lines = ["```mermaid", "flowchart LR"]
    for number, thread in enumerate(dict.fromkeys(visit.thread for visit in visits)):
        lines.append(f'  subgraph t{number}["{thread}"]')
        lines += [f'    {node}["{room}"]' for (of, room), node in nodes.items() if of == thread]
        lines.append("  end")
    pairs = dict.fromkeys(
        (nodes[one.thread, one.room], nodes[other.thread, other.room]) for one, other in pairwise(visits)
    )
    lines += [f"  {one} -->|{number}| {other}" for number, (one, other) in enumerate(pairs, 1) if one != other]
    return "\n".join([*lines, "```"])


def described(calls: Sequence[Call]) -> str:
    """Return a walk as the page has it: figures, the picture, and each door."""
    stays = stays_of(calls)
    visits = first_visits(stays)
    rooms = dict.fromkeys(visit.room for visit in visits)
    functions = {(call.room, call.function) for call in calls}
    rows = [
        f"| {number} | {visit.thread} | `{visit.room}` | `{visit.entry}` | {len(visit.functions)} |"
        for number, visit in enumerate(visits, 1)
    ]
    return "\n".join(
        [
            f"{len(calls)} calls of {len(functions)} functions in {len(rooms)} rooms, {len(stays)} stays.",
            "",
            drawn(visits),
            "",
            "| | thread | room | enters by | functions there |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


# -- the jobs: functions run in this process, so that they share these with the program

_ASKED: Final = threading.Semaphore(0)
_VALUES: Final[list[int]] = []
_ON_RECORD: Final[list[Callable[[], object]]] = []  # called by the function, once


class OnDemand(SourceFunction):
    """Emits a number when the walk asks for it."""

    def __init__(self) -> None:
        self._is_running = True

    def run(self, ctx: Any) -> None:
        while self._is_running:
            if _ASKED.acquire(timeout=0.1) and self._is_running:
                ctx.collect(_VALUES.pop(0))

    def cancel(self) -> None:
        self._is_running = False


class Counts(KeyedProcessFunction):
    """Counts per key, and makes the calls that the walk wants."""

    def __init__(self, *, traces_state: bool = False) -> None:
        self._traces_state = traces_state

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        if self._traces_state:
            _TRACER.start()
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        if self._traces_state:
            _TRACER.stop()
        while _ON_RECORD:
            _ON_RECORD.pop()()
        yield count


def number(value: int) -> int:
    return value


@contextmanager
def _job(
    *, interval_ms: int = 0, traces_start: bool = False, traces_state: bool = False
) -> Iterator[Callable[..., None]]:
    """A source, a map, an exchange by key, a function with state.

    Gives what sends a number through it, and returns when the function has it, which calls ``on_record`` then.
    """
    with MiniCluster(num_task_managers=2) as cluster, tempfile.TemporaryDirectory() as folder:
        env = cluster.environment()
        env.set_buffer_timeout(0)
        if interval_ms:
            options = Configuration()
            options.set_string("execution.checkpointing.dir", f"file://{folder}")
            env.configure(options)
            env.enable_checkpointing(interval_ms)
        stream = env.add_source(OnDemand(), type_info=Types.LONG()).map(lambda value: value)
        stream.key_by(number).process(Counts(traces_state=traces_state)).add_sink(lambda _: None)
        if traces_start:
            _ON_RECORD.append(_TRACER.stop)
            _TRACER.start()
        job = env.execute_async("walk")

        def send(value: int, on_record: Callable[[], object] = int) -> None:
            arrived = threading.Event()
            _ON_RECORD[:0] = [arrived.set, on_record]
            _VALUES.append(value)
            _ASKED.release()
            assert arrived.wait(WAIT_S), "the number never arrived"

        send(0)
        yield send
        job.cancel().result()


def _settle() -> None:
    """Wait until nothing is called for a while: credits of earlier buffers are on their way."""
    num_seen = -1
    while num_seen:
        _TRACER.start()
        time.sleep(0.05)
        num_seen = len(_TRACER.calls)
    _TRACER.stop()


def walk_of_a_record() -> list[Call]:
    """Walk from the source function to the function behind the exchange, in the other TaskManager."""
    with _TRACER.installed(), _job() as send:
        for value in range(1, 20):
            send(value)  # a channel's first record opens it, and its first loops are written
        for value in range(1, 20):
            _settle()
            _TRACER.start()
            send(value, _TRACER.stop)
            if any(call.room == "netstack/transport" for call in _TRACER.calls):
                return list(_TRACER.calls)
    raise AssertionError("no record went over the network")


def walk_of_a_credit() -> list[Call]:
    """Walk from the function that has a record, whose buffer is free after it, to the sender that may send another
    one.
    """
    with _TRACER.installed(), _job() as send:
        for value in range(200):
            _settle()
            _TRACER.ends_at = "SenderCredit.grant"
            send(value, _TRACER.start)
            if _TRACER.has_ended.wait(0.1):
                return [call for call in _TRACER.calls if call.room.startswith("netstack")]
    raise AssertionError("no credit was granted")


def walk_of_a_barrier() -> list[Call]:
    """Walk from the JobManager that begins a checkpoint to the JobManager that has all of it."""
    with _TRACER.installed(), _job(interval_ms=300) as send:
        for value in range(20):
            send(value)
            _TRACER.calls.clear()
            _TRACER.has_ended.clear()
            _TRACER.ends_at = "JobMaster._checkpoint_completed"
            _TRACER.starts_at = "JobKeeper.may_trigger"
            assert _TRACER.has_ended.wait(WAIT_S), "no checkpoint was complete"
            if any(call.room == "state" and call.thread == "the function's task" for call in _TRACER.calls):
                return list(_TRACER.calls)
    raise AssertionError("no checkpoint was seen from its beginning to its end")


def walk_of_a_deployment() -> list[Call]:
    """Walk from ``execute_async`` in the program to the first record in the function's task."""
    with _TRACER.installed(), _job(traces_start=True):
        return list(_TRACER.calls)


def walk_of_a_state_access() -> list[Call]:
    """Walk through ``value()`` and ``update()`` of a ``ValueState`` on the heap."""
    with _TRACER.installed(), _job(traces_state=True) as send:
        send(1)
        return list(_TRACER.calls)


WALKS: Final[dict[str, Callable[[], list[Call]]]] = {
    "record": walk_of_a_record,
    "credit": walk_of_a_credit,
    "barrier": walk_of_a_barrier,
    "deployment": walk_of_a_deployment,
    "state access": walk_of_a_state_access,
}


def main() -> None:
    """Trace each walk, and put its drawing between its marks on the page."""
    page = PAGE.read_text()
    for name, walk in WALKS.items():
        calls = walk()
        begin, end = f"<!-- {name}: drawn by make walks -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}{described(calls)}\n{end}{after}"
        print(f"{name}: {described(calls).splitlines()[0]}")
    PAGE.write_text(page)


if __name__ == "__main__":
    # Under its own name: tasks would get copies of the objects in __main__.
    from tests.house import walks

    walks.main()
