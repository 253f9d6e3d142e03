"""Word count: ten million Zipf words through source -> flat_map -> key_by(word) -> running count per word -> sink.

Side:     any; sources and sinks run inside the TaskManagers.
Words:    10,000 distinct ones, lines of ten, fixed seed; a million are made before the clock starts and come again and
          again.
Topology: ``chained``: every TaskManager has a source that is chained with its flat_map; ``unchained``: one source,
          whose lines are dealt out to all flat_maps.
Forms:    ``called``: flat_map gives (word, 1), and it, the key and reduce are named functions.  ``lambdas``: the
          program with lambdas, the twin of ``called``: another spelling must not be slower.  ``generator``: the twin
          whose flat_map yields.  ``sum``: with the built-in sum.  ``columns``: flat_map gives words, which are counted,
          and the results stay columns.  ``state``: like ``called``, but a process function counts in a ``ValueState``
          and yields; ``state-list``: its twin, which returns a list.  In every form each function is called for each
          record.
Sources:  ``produced``: lines are looked up one by one, as the peers do; ``sliced``: lists of lines are cut out of a
          ready list.
Proof:    one output per word, and the last count of every word is exact; a run that is not timed checks every single
          count.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from bench.jobs.checked import Keep, MarkedReader, Reports, check_increments, check_last_values, check_num_outputs
from bench.jobs.pipeline import TWO_TASK_MANAGERS, Deployment, Run, into_sink, run_program
from flowlet.common import Types, WatermarkStrategy
from flowlet.datastream import (
    DataStream,
    EmbeddedRocksDBStateBackend,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import Source
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.records import Chunk

NUM_DISTINCT: Final = 10_000
WORDS_PER_LINE: Final = 10
LINES_PER_CHUNK: Final = 800  # 8,000 words, the best size for columns; with 200 it is about 10 % slower
MADE_WORDS: Final = 1_000_000
NUM_WORDS: Final = 10_000_000
QUICK_WORDS: Final = 200_000
PARALLELISM: Final = 2
TOPOLOGIES: Final = ("chained", "unchained")
SOURCES: Final = ("produced", "sliced")
PAIR: Final = Types.TUPLE([Types.STRING(), Types.LONG()])


@lru_cache(maxsize=1)
def make_lines(num_words: int = MADE_WORDS, seed: int = 1) -> list[str]:
    """Return lines of Zipf-distributed words: the word of rank r is drawn with a probability proportional to 1 / r."""
    weights = itertools.accumulate(1.0 / rank for rank in range(1, NUM_DISTINCT + 1))
    vocabulary = [f"word{number:05d}" for number in range(NUM_DISTINCT)]
    drawn = random.Random(seed).choices(vocabulary, cum_weights=list(weights), k=num_words)
    return [" ".join(drawn[start : start + WORDS_PER_LINE]) for start in range(0, num_words, WORDS_PER_LINE)]


def produced(lines: Sequence[str], start: int, stop: int) -> Iterator[Chunk]:
    """Look up line after line."""
    size = len(lines)
    for at in range(start, stop, LINES_PER_CHUNK):
        yield Chunk([lines[number % size] for number in range(at, min(at + LINES_PER_CHUNK, stop))])


def sliced(lines: Sequence[str], start: int, stop: int) -> Iterator[Chunk]:
    """Cut chunks out of the ready list."""
    size = len(lines)
    while start < stop:
        at = start % size
        cut = lines[at : min(at + LINES_PER_CHUNK, at + stop - start)]
        start += len(cut)
        yield Chunk(list(cut))


@dataclass(frozen=True)
class ZipfSource(Source):
    """``num_words`` words in lines of ten; every reader has a share of the line numbers."""

    folder: Path
    num_words: int
    made_words: int
    kind: str

    def create_reader(self, subtask: int, parallelism: int) -> MarkedReader:
        """Return the reader of one subtask; the time to make its lines is not measured."""
        lines = make_lines(self.made_words)
        start, stop = share(self.num_words, subtask, parallelism)
        chunks = sliced if self.kind == "sliced" else produced
        return MarkedReader(chunks(lines, start, stop), self.folder, subtask)


def share(num_words: int, subtask: int, parallelism: int) -> tuple[int, int]:
    """Return the line numbers of a subtask."""
    num_lines = num_words // WORDS_PER_LINE
    return num_lines * subtask // parallelism, num_lines * (subtask + 1) // parallelism


def _pairs_of(line: str) -> list[tuple[str, int]]:
    pairs = []
    for word in line.split():
        if word:  # it always is; a function that does a little more than an expression could
            pairs.append((word, 1))  # noqa: PERF401 - as the condition
    return pairs


def _word_of(pair: tuple[str, int]) -> str:
    word, _ = pair
    return word


def _added(one: tuple[str, int], other: tuple[str, int]) -> tuple[str, int]:
    word, count = one
    return word, count + other[1]


def called(lines: DataStream) -> DataStream:
    """Count by functions that are all called as the user wrote them."""
    return lines.flat_map(_pairs_of, PAIR).key_by(_word_of, Types.STRING()).reduce(_added)


def lambdas(lines: DataStream) -> DataStream:
    """Count with lambdas, as the examples of every stream processor do."""
    words = lines.flat_map(lambda line: [(word, 1) for word in line.split()], PAIR)
    return words.key_by(lambda pair: pair[0], Types.STRING()).reduce(lambda one, other: (one[0], one[1] + other[1]))


def _yielded(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def generator(lines: DataStream) -> DataStream:
    """Count like ``called``, with a flat_map function that yields."""
    return lines.flat_map(_yielded, PAIR).key_by(_word_of, Types.STRING()).reduce(_added)


def built_in_sum(lines: DataStream) -> DataStream:
    """Count by the built-in ``sum``, as a user who knows the API would."""
    words = lines.flat_map(lambda line: [(word, 1) for word in line.split()], PAIR)
    return words.key_by(lambda pair: pair[0], Types.STRING()).sum(1)


def columns(lines: DataStream) -> DataStream:
    """Count the words as they are; the results stay columns."""
    words = lines.flat_map(lambda line: line.split(), Types.STRING())
    return words.key_by(lambda word: word, Types.STRING()).count()


class CountInState(KeyedProcessFunction):
    """Counts with a ``ValueState``."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Ask for the state."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[Any, int], ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, int]]:
        """Count one word, as the examples of PyFlink do."""
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        yield value[0], count


class ListCountInState(CountInState):
    """The twin, which returns a list."""

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> list[tuple[str, int]]:  # type: ignore[override]  # both are results
        """Count one word, in another spelling."""
        state = self.count
        before = state.value()
        after = value[1] if before is None else before + value[1]
        state.update(after)
        return [(value[0], after)]


def in_state(lines: DataStream) -> DataStream:
    """Count like ``called``, with keyed state instead of a reduction."""
    return lines.flat_map(_pairs_of, PAIR).key_by(_word_of, Types.STRING()).process(CountInState(), PAIR)


def in_state_list(lines: DataStream) -> DataStream:
    """Count like ``state``, with a function that returns a list: its twin."""
    return lines.flat_map(_pairs_of, PAIR).key_by(_word_of, Types.STRING()).process(ListCountInState(), PAIR)


FORMS: Final[dict[str, Callable[[DataStream], DataStream]]] = {
    "called": called,
    "lambdas": lambdas,
    "generator": generator,
    "sum": built_in_sum,
    "columns": columns,
    "state": in_state,
    "state-list": in_state_list,
}
_DECLARED: Final = ("sum", "columns")  # declared operations, whose results may be columns


@dataclass(frozen=True)
class Job:
    """One way to count ``num_words`` words."""

    form: str = "sum"
    source: str = "produced"
    topology: str = "chained"
    num_words: int = NUM_WORDS
    made_words: int = MADE_WORDS
    inspects_all: bool = False
    is_in_rocksdb: bool = False  # keyed state; else it is on the heap

    @property
    def name(self) -> str:
        """The name of the figure."""
        topology = "" if self.topology == "chained" else f", {self.topology}"
        return f"wordcount {self.form}{' in RocksDB' if self.is_in_rocksdb else ''}, {self.source}{topology}"

    def build(self, environment: StreamExecutionEnvironment, folder: Path) -> None:
        """Build the program."""
        if self.is_in_rocksdb:
            environment.set_state_backend(EmbeddedRocksDBStateBackend())
        source = ZipfSource(folder, self.num_words, self.made_words, self.source)
        lines = environment.from_source(source, WatermarkStrategy.no_watermarks(), "Zipf lines", Types.STRING())
        if self.topology == "unchained":
            lines.set_parallelism(1)
        keep, in_chunks = self.keep(environment.get_parallelism()), self.form in _DECLARED
        into_sink(FORMS[self.form](lines), folder, keep, inspects_all=self.inspects_all, in_chunks=in_chunks)

    def keep(self, parallelism: int = 2) -> Keep:
        """Keep at least the last two cycles of all words; a subtask has its share of them."""
        return Keep.last_cycles(self.num_words, self.made_words, parallelism)

    def check(self, reports: Reports, num_readers: int) -> None:
        """Check that there is one output per word, and that every word ends at its count."""
        if self.inspects_all:
            check_num_outputs(reports, self.num_words)
            check_increments(reports, (self._increments(number, num_readers) for number in range(num_readers)))
        else:
            self.check_last(reports)

    def check_last(self, reports: Reports) -> None:
        """Check sinks that kept the last outputs."""
        check_num_outputs(reports, self.num_words)
        check_last_values(reports, self.counts())

    def counts(self) -> Counter[str]:
        """Return the expected count of each word."""
        lines = make_lines(self.made_words)
        cycles, rest = divmod(self.num_words // WORDS_PER_LINE, len(lines))
        counts = Counter(itertools.chain.from_iterable(line.split() for line in lines))
        counts = Counter({word: count * cycles for word, count in counts.items()})
        counts.update(itertools.chain.from_iterable(line.split() for line in lines[:rest]))
        return counts

    def _increments(self, subtask: int, parallelism: int) -> dict[str, list[int]]:
        lines = make_lines(self.made_words)
        start, stop = share(self.num_words, subtask, parallelism)
        counts = Counter(word for number in range(start, stop) for word in lines[number % len(lines)].split())
        return {word: [1] * count for word, count in counts.items()}

    def run(self, deployment: Deployment = TWO_TASK_MANAGERS) -> Run:
        """Run the job once, in a fresh cluster."""
        num_readers = 1 if self.topology == "unchained" else deployment.num_task_managers
        return run_program(self.build, self.num_words, partial(self.check, num_readers=num_readers), deployment)
