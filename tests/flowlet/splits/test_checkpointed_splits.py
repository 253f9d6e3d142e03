"""A coordinator, its enumerator and its readers give every record once, whatever is interleaved with checkpoints and
restarts.

Messages are in flight for any time, but keep their order between two ends, as on a connection.  A reader handles a
trigger where it stands among the answers, as the mails of a task do.
"""

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.connectors.files import reader as text_line_source
from flowlet.connectors.files.reader import TextLineReader
from flowlet.connectors.numbers import reader as number_source
from flowlet.connectors.numbers.reader import numbered_records
from flowlet.connectors.sources_in_turn import SourcesInTurn
from flowlet.connectors.split_reader import AssignedSource
from flowlet.jm.source_coordinator import MessageFor, SourceCoordinator
from flowlet.messages.control_messages import AddSplits, NoMoreSplits
from flowlet.messages.execution_state import Subtask
from flowlet.splits.enumerators import enumerator_for
from flowlet.splits.split_kinds import FileSet
from flowlet.state.state_snapshots import StateShare

MAX_READERS = 3


def small_blocks(files: FileSet) -> AssignedSource[TextLineReader]:
    """Reads files in blocks of a few bytes."""
    return AssignedSource(TextLineReader, files, charset=files.charset, block_bytes=7)


@dataclass
class Checkpoint:
    """The content of a checkpoint: the coordinator's state, and by reader its position and the records that count."""

    coordinator: bytes
    readers: dict[int, tuple[bytes, list[Any]]] = field(default_factory=dict)


class Run:
    """The runs of one source vertex of a job, with its JobManager; each with its own number of readers.

    ``source``: a ``Source`` whose positions can be divided.
    """

    def __init__(self, source: Any, choice: Random) -> None:
        self._source = source
        self._choice = choice
        self._complete: Checkpoint | None = None
        self._start()

    def _start(self) -> None:
        """A run of the job: from the newest complete checkpoint, or from the beginning."""
        complete = self._complete
        self.width = self._choice.randint(1, MAX_READERS)
        self.requests: deque[int] = deque()
        self.orders: list[deque[Callable[[], None]]] = [deque() for _ in range(self.width)]
        self.ready: list[Callable[[], None]] = []  # the call in the background
        self.found: list[list[Any]] = [[] for _ in range(self.width)]
        self.ended = [False] * self.width
        self._coordinator = SourceCoordinator(
            "vertex",
            "source",
            enumerator_for(self._source.split_set),
            self.width,
            send=self._send,
            fail=self._fail,
            call_in_background=self._call,
            restored=None if complete is None else complete.coordinator,
        )
        self._coordinator.start()
        self.readers = [self._source.create_reader(subtask, self.width) for subtask in range(self.width)]
        for subtask, reader in enumerate(self.readers):
            if complete is not None:
                reader.restore_position(self._share(complete, subtask))
            reader.start(partial(self.requests.append, subtask))
        if complete is not None:
            self.found[0] += [record for _, records in complete.readers.values() for record in records]

    def _share(self, complete: Checkpoint, subtask: int) -> Any:
        former = [pickle.loads(position) for _, (position, _) in sorted(complete.readers.items())]
        if len(former) == self.width:
            return former[subtask]
        return self._source.redistribute_positions(former, StateShare(subtask, self.width, 128, len(former)))

    def _send(self, reader: Subtask, message_for: MessageFor) -> None:
        subtask = reader.subtask
        match message_for(b"attempt"):
            case AddSplits(splits=splits, waiting_bytes=waiting_bytes):
                self.orders[subtask].append(lambda: self.readers[subtask].add_splits(splits, waiting_bytes))
            case NoMoreSplits():
                self.orders[subtask].append(self.readers[subtask].no_more_splits)

    def _fail(self, error: Exception, _: str) -> None:
        raise error

    def _call(
        self,
        function: Callable[[], None],
        on_result: Callable[[None], None],
        on_error: Callable[[Exception], None],
        name: str,
    ) -> None:
        def run() -> None:
            function()
            on_result(None)

        self.ready.append(run)

    # -- what may happen next

    def prepare(self) -> None:
        if self.ready:
            self.ready.pop()()

    def answer(self) -> None:
        if self.requests:
            self._coordinator.splits_requested(self.requests.popleft())

    def deliver(self, subtask: int) -> None:
        if self.orders[subtask]:
            self.orders[subtask].popleft()()

    def poll(self, subtask: int) -> None:
        chunk = self.readers[subtask].poll_chunk()
        self.ended[subtask] = chunk is None
        self.found[subtask] += [] if chunk is None else chunk.values

    def trigger(self) -> None:
        checkpoint = Checkpoint(self._coordinator.snapshot())
        for subtask in range(self.width):
            self.orders[subtask].append(partial(self._take, checkpoint, subtask))

    def _take(self, checkpoint: Checkpoint, subtask: int) -> None:
        position = pickle.dumps(self.readers[subtask].snapshot_position())
        checkpoint.readers[subtask] = (position, list(self.found[subtask]))
        if len(checkpoint.readers) == self.width:
            self._complete = checkpoint

    def restart(self) -> None:
        for reader in self.readers:
            reader.close()
        self._start()

    def run_to_the_end(self) -> list[Any]:
        while not all(self.ended):
            self.prepare()
            self.answer()
            for subtask in range(self.width):
                self.deliver(subtask)
                self.poll(subtask)
        return sorted(record for records in self.found for record in records)


# What may happen, and how often: a checkpoint takes several steps, and a run many of them.
STEPS: list[tuple[str, int]] = [
    *((name, 8) for name in ("deliver", "poll")),
    ("answer", 8),
    ("prepare", 4),
    ("trigger", 3),
    ("restart", 1),
]


def step(run: Run, choice: Random) -> None:
    (name,) = choice.choices([name for name, _ in STEPS], [weight for _, weight in STEPS])
    if name in ("deliver", "poll"):
        getattr(run, name)(choice.randrange(run.width))
    else:
        getattr(run, name)()


def everything(source: Any, seed: int, num_steps: int) -> list[Any]:
    """Return all records, after so many steps."""
    choice = Random(seed)
    run = Run(source, choice)
    for _ in range(num_steps):
        step(run, choice)
    return run.run_to_the_end()


def written(folder: Path, sizes: Sequence[int]) -> tuple[FileSet, list[str]]:
    """Files with so many lines, and the lines."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.txt" for number in range(len(sizes))]
    lines = [[f"{number} {line}" for line in range(size)] for number, size in enumerate(sizes)]
    for path, its_lines in zip(paths, lines, strict=True):
        path.write_text("".join(f"{line}\n" for line in its_lines))
    return FileSet(tuple(map(str, paths))), sorted(line for its_lines in lines for line in its_lines)


@given(
    seed=st.integers(0, 2**32),
    num_steps=st.integers(0, 200),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    split_bytes=st.none() | st.integers(1, 30),
)
def test_every_line_counts_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_steps: int, sizes: list[int], split_bytes: int | None
) -> None:
    files, lines = written(tmp_path_factory.getbasetemp() / "checkpointed", sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_line_source, "MAX_CHUNK_LINES", 2)
        found = everything(small_blocks(msgspec.structs.replace(files, split_bytes=split_bytes)), seed, num_steps)

    assert found == lines


@given(seed=st.integers(0, 2**32), num_steps=st.integers(0, 200), num_records=st.integers(0, 200))
def test_every_number_counts_once(seed: int, num_steps: int, num_records: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_source, "MAX_CHUNK_RECORDS", 3)
        found = everything(numbered_records(-3, num_records - 3), seed, num_steps)

    assert found == list(range(-3, num_records - 3))


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    num_steps=st.integers(0, 300),
    num_numbers=st.integers(0, 40),
    sizes=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    more=st.lists(st.integers(0, 8), min_size=1, max_size=3),
)
def test_every_record_of_sources_in_turn_counts_once(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    num_steps: int,
    num_numbers: int,
    sizes: list[int],
    more: list[int],
) -> None:
    """The sources are files, numbers, files: a reader may be behind the end of a source, or before the first split of
    the next one.
    """
    base = tmp_path_factory.getbasetemp()
    (first, lines), (last, later) = written(base / "first", sizes), written(base / "last", more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_line_source, "MAX_CHUNK_LINES", 2)
        patch.setattr(number_source, "MAX_CHUNK_RECORDS", 3)
        found = everything(
            SourcesInTurn(small_blocks(first), numbered_records(0, num_numbers, function=str), small_blocks(last)),
            seed,
            num_steps,
        )

    assert found == sorted([*lines, *map(str, range(num_numbers)), *later])
