"""What the programs of stored savepoints stand on: a source that stops half-way, and a place for results.

A program runs in this process (``FLOWLET_LOCAL=inprocess``), so that its functions meet the maker of savepoints, or the
test, in ``STAGE``.  State that was stored names the classes of these modules: a class that moves or loses its name
makes the stored savepoints unreadable.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flowlet.common import Types
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream import (
    CheckpointedFunction,
    DataStream,
    FlatMapFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    MapFunction,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.state import ListStateDescriptor

HERE: Final = "/proc/self/cwd"
"""A path that is the working directory, wherever it is: paths in a savepoint are absolute, and a test has a folder of
its own.
"""
POLL_S: Final = 0.005


@dataclass
class Stage:
    """How far a run may go, how far it is, and what it gave."""

    go_on: threading.Event = field(default_factory=threading.Event)  # sources read behind their halves
    results: list[str] = field(default_factory=list)
    halves: set[str] = field(default_factory=set)  # the sources that are there
    # Of a cluster that runs; None: each job has one of its own.
    environment: Callable[[], StreamExecutionEnvironment] | None = None
    is_making: bool = False  # functions behind sources that cannot stop are slow

    def reset(self, *, is_making: bool = False) -> None:
        """Before each run."""
        self.go_on.clear()
        self.results.clear()
        self.halves.clear()
        self.is_making = is_making
        if not is_making:
            self.go_on.set()

    def num_of(self, label: str) -> int:
        return sum(each.startswith(f"{label}: ") for each in list(self.results))


STAGE: Final = Stage()


@dataclass(frozen=True)
class Job:
    """A program with its results.

    Args:
        build: makes the streams.
        sources: the sources that stop half-way.
        is_keyed: it has keyed state, and runs with both state back ends.
        options: more of its configuration, where a checkpoint is taken.
        prepare: makes its input files in the working directory.
        outcome: the results of a run that ended, if they are not in ``STAGE``, or not those alone.
        counts_first: results of the run that wrote the savepoint count; otherwise the one that is restored gives all
            results.
        takes_checkpoint: a retained checkpoint is stored, not a savepoint.
        options_of_others: the same of its other runs.
        needs: a package without which it cannot run.
        around: makes what a run stands in, such as a broker; called with whether the run goes on behind the half.
    """

    build: Callable[[StreamExecutionEnvironment], None]
    sources: tuple[str, ...] = ("feed",)
    is_keyed: bool = True
    options: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None
    outcome: Callable[[], list[str]] = list
    counts_first: bool = True
    takes_checkpoint: bool = False
    options_of_others: dict[str, str] = field(default_factory=dict)
    needs: str | None = None
    around: Callable[[bool], AbstractContextManager[object]] = nullcontext


class Feed(SourceFunction, CheckpointedFunction):
    """Emits records with their times, and watermarks; its position is in list state.

    Args:
        name: in ``STAGE``.
        items: pairs of a record and its time, and the times of watermarks.
        half: how many of them are in front of the savepoint.
        pause_s: between the halves.
        waits_for: a label, and how many results of it there must be before the source ends.
    """

    def __init__(
        self,
        name: str,
        items: Sequence[tuple[Any, int] | int],
        half: int,
        pause_s: float = 0.0,
        waits_for: tuple[str, int] = ("", 0),
    ) -> None:
        self.name, self.items, self.half, self.pause_s, self.waits_for = name, items, half, pause_s, waits_for
        self.next = 0

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.position = context.get_operator_state_store().get_list_state(ListStateDescriptor("position", Types.LONG()))
        self.is_restored = context.is_restored()
        for position in self.position:
            self.next = position

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.position.update([self.next])

    def run(self, ctx: SourceContext) -> None:
        while self.next < len(self.items) and not ctx.is_cancelled:
            if self.next == self.half:
                STAGE.halves.add(self.name)
                if not STAGE.go_on.wait(POLL_S):
                    continue
                if not self.is_restored:
                    # What is in front of the half has passed, or has expired: in a savepoint it has, too.
                    time.sleep(self.pause_s)
            with ctx.get_checkpoint_lock():
                item = self.items[self.next]
                if isinstance(item, int):
                    ctx.emit_watermark(item)
                else:
                    ctx.collect_with_timestamp(*item)
                self.next += 1
        label, number = self.waits_for
        while number and STAGE.num_of(label) < number and not ctx.is_cancelled:
            time.sleep(POLL_S)  # ended by the results of timers


def pace(name: str, pause_s: float) -> None:
    """Called for each record by a function that a checkpoint finds with records in front of it: slow while that is
    made, and only then.
    """
    STAGE.halves.add(name)
    if STAGE.is_making:
        STAGE.go_on.wait(pause_s)


class Keep(MapFunction):
    def __init__(self, label: str) -> None:
        self.label = label

    def map(self, value: Any) -> Any:
        STAGE.results.append(f"{self.label}: {value!r}")
        return value


class Held(FlatMapFunction):
    """Behind a source that cannot be stopped: passes a part of the numbers, slowly behind the first ones, so that
    barriers pass between.
    """

    def __init__(self, name: str, half: int, one_of: int = 1, pause_s: float = 0.01) -> None:
        self.name, self.half, self.one_of, self.pause_s = name, half, one_of, pause_s
        self.count = 0

    def flat_map(self, value: Any) -> Iterator[Any]:
        self.count += 1
        if STAGE.is_making and self.count >= self.half:
            STAGE.halves.add(self.name)
            if not STAGE.go_on.is_set():
                time.sleep(self.pause_s)  # only while a savepoint is made
        if int(value) % self.one_of == 0:
            yield int(value)


def keep(stream: DataStream, label: str) -> None:
    """End a stream on the stage."""
    stream.map(Keep(label)).uid(f"keep {label}").sink_to(DiscardingSink())


def keep_named(stream: DataStream, name: str) -> None:
    """End a stream on the stage, with one name for the results and for its last operator."""
    keep(stream.uid(name), name)


def feed(
    env: StreamExecutionEnvironment,
    items: Sequence[tuple[Any, int] | int],
    half: int,
    type_info: TypeInformation | None = None,
    name: str = "feed",
    pause_s: float = 0.0,
    waits_for: tuple[str, int] = ("", 0),
) -> DataStream:
    """A stream of items, see ``Feed``."""
    return env.add_source(Feed(name, items, half, pause_s, waits_for), type_info=type_info).set_parallelism(1).uid(name)


def lines_of(folder: Path) -> list[str]:
    """All lines of all visible files below a folder."""
    files = [each for each in sorted(folder.rglob("*")) if each.is_file() and not each.name.startswith(".")]
    return [line for each in files for line in each.read_text("utf-8").splitlines()]
