"""A coordinator, its enumerator and its readers give every line once, whatever is interleaved with checkpoints and restarts.

Messages are in flight for any time, but keep their order between two ends, as on a connection.  A reader handles a trigger where it stands
among the answers, as the mails of a task do.
"""

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.connectors import text_line_source
from flowlet.connectors.text_line_source import TextLineReader
from flowlet.jm.source_coordinator import SourceCoordinator
from flowlet.splits.file_enumerator import FileSplitEnumerator
from flowlet.splits.file_split import FileSet

NUM_READERS = 2


@dataclass
class Checkpoint:
    """What was kept: the coordinator's state, and by reader its position and the lines that count."""

    coordinator: bytes
    readers: dict[int, tuple[bytes, list[str]]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return len(self.readers) == NUM_READERS


class Source:
    """One source vertex of a job, with its JobManager."""

    def __init__(self, files: FileSet, block_bytes: int) -> None:
        self._files = files
        self._block_bytes = block_bytes
        self._complete: Checkpoint | None = None
        self._start()

    def _start(self) -> None:
        """A run of the job: from the newest complete checkpoint, or from the beginning."""
        complete = self._complete
        self.requests: deque[int] = deque()
        self.orders: list[deque[Callable[[], None]]] = [deque() for _ in range(NUM_READERS)]
        self.ready: list[Callable[[], None]] = []  # the call in the background
        self.lines: list[list[str]] = [[] for _ in range(NUM_READERS)]
        self.ended = [False] * NUM_READERS
        self._coordinator = SourceCoordinator(
            "source",
            FileSplitEnumerator(self._files),
            NUM_READERS,
            add_splits=self._add_splits,
            no_more_splits=lambda subtask: self.orders[subtask].append(self.readers[subtask].no_more_splits),
            fail=self._fail,
            call_in_background=self._call,
            restored=None if complete is None else complete.coordinator,
        )
        self._coordinator.start()
        self.readers = [TextLineReader("UTF-8", NUM_READERS, block_bytes=self._block_bytes) for _ in range(NUM_READERS)]
        for subtask, reader in enumerate(self.readers):
            if complete is not None:
                position, lines = complete.readers[subtask]
                reader.restore_position(pickle.loads(position))
                self.lines[subtask] = list(lines)
            reader.start(partial(self.requests.append, subtask))

    def _add_splits(self, subtask: int, splits: Sequence[Any], waiting_bytes: int) -> None:
        self.orders[subtask].append(lambda: self.readers[subtask].add_splits(splits, waiting_bytes))

    def _fail(self, error: Exception) -> None:
        raise error

    def _call(
        self, function: Callable[[], None], on_result: Callable[[None], None], on_error: Callable[[Exception], None], name: str
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
        self.lines[subtask] += [] if chunk is None else chunk.values

    def trigger(self) -> None:
        checkpoint = Checkpoint(self._coordinator.snapshot())
        for subtask in range(NUM_READERS):
            self.orders[subtask].append(partial(self._take, checkpoint, subtask))

    def _take(self, checkpoint: Checkpoint, subtask: int) -> None:
        position = pickle.dumps(self.readers[subtask].snapshot_position())
        checkpoint.readers[subtask] = (position, list(self.lines[subtask]))
        if checkpoint.is_complete:
            self._complete = checkpoint

    def restart(self) -> None:
        for reader in self.readers:
            reader.close()
        self._start()

    def run_to_the_end(self) -> list[str]:
        while not all(self.ended):
            self.prepare()
            self.answer()
            for subtask in range(NUM_READERS):
                self.deliver(subtask)
                self.poll(subtask)
        return sorted(line for lines in self.lines for line in lines)


# What may happen, and how often: a checkpoint takes several steps, and a run many of them.
STEPS: list[tuple[str, int]] = [
    *((name, 8) for name in ("deliver", "poll")),
    ("answer", 8),
    ("prepare", 4),
    ("trigger", 3),
    ("restart", 1),
]


def step(source: Source, choice: Random) -> None:
    (name,) = choice.choices([name for name, _ in STEPS], [weight for _, weight in STEPS])
    if name in ("deliver", "poll"):
        getattr(source, name)(choice.randrange(NUM_READERS))
    else:
        getattr(source, name)()


@given(
    seed=st.integers(0, 2**32),
    num_steps=st.integers(0, 200),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    split_bytes=st.none() | st.integers(1, 30),
)
def test_every_line_counts_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_steps: int, sizes: list[int], split_bytes: int | None
) -> None:
    choice = Random(seed)
    folder = tmp_path_factory.getbasetemp() / "checkpointed"
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.txt" for number in range(len(sizes))]
    lines = [[f"{number} {line}" for line in range(size)] for number, size in enumerate(sizes)]
    for path, its_lines in zip(paths, lines, strict=True):
        Path(path).write_text("".join(f"{line}\n" for line in its_lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_line_source, "MAX_CHUNK_LINES", 2)
        source = Source(FileSet(tuple(map(str, paths)), split_bytes=split_bytes), block_bytes=7)
        for _ in range(num_steps):
            step(source, choice)
        found = source.run_to_the_end()

    assert found == sorted(line for its_lines in lines for line in its_lines)
