"""Keyed running sums of (key, int) pairs: source -> key_by -> sum per pair -> sink.

Side:     any; sources and sinks run inside the TaskManagers.
Records:  pair n is (a key of a shuffled table, n): the table has every key equally often and comes again and again.
Keys:     ``int``: 1,000 ints; ``str``: 1,000,000 strings of eleven characters.
Forms:    ``lambdas``: key and reduce are lambdas of the user, each called for each record; ``sum``: the built-in sum.
Sources:  ``produced``: the tuples are made one by one, as the peers do; ``sliced``: lists of tuples are cut out of a
          ready list.
Proof:    one output per pair, and the last sum of every key is exact; a run that is not timed checks every increment,
          and the order of each source's records per key.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from bench.jobs.checked import Keep, MarkedReader, Reports, check_increments, check_last_values, check_num_outputs
from bench.jobs.pipeline import TWO_TASK_MANAGERS, Deployment, Run, into_sink, run_program
from flowlet.common import TypeInformation, Types, WatermarkStrategy
from flowlet.datastream import DataStream, StreamExecutionEnvironment
from flowlet.datastream.connectors import Source
from flowlet.records import Chunk

PAIRS_PER_CHUNK: Final = 2000  # the best size for tuples: 1,000 and 4,000 are about 5 % slower, 8,000 15 %
SOURCES: Final = ("produced", "sliced")
NUM_PAIRS: Final = 10_000_000


@dataclass(frozen=True)
class Keys:
    """The keys of a job: ``size`` different ones in a table of ``table`` entries."""

    kind: str
    size: int
    table: int

    @property
    def name(self) -> str:
        """The name of the keys in the figure."""
        return f"({self.kind}, int), {self.size:,} keys"

    @property
    def type(self) -> TypeInformation:
        """The type information of the keys that a user would declare."""
        return Types.STRING() if self.kind == "str" else Types.LONG()


KEYS: Final = {"int": Keys("int", 1000, 100_000), "str": Keys("str", 1_000_000, 1_000_000)}


@lru_cache(maxsize=1)
def make_table(keys: Keys, seed: int = 1) -> list[Any]:
    """Return the keys in a random order, each as often as the others."""
    numbers = [number % keys.size for number in range(keys.table)]
    random.Random(seed).shuffle(numbers)
    return [f"key{number:08d}" for number in numbers] if keys.kind == "str" else numbers


def produced(table: Sequence[Any], start: int, stop: int) -> Iterator[Chunk]:
    """Make pair after pair."""
    size = len(table)
    for at in range(start, stop, PAIRS_PER_CHUNK):
        yield Chunk([(table[number % size], number) for number in range(at, min(at + PAIRS_PER_CHUNK, stop))])


def sliced(table: Sequence[Any], start: int, stop: int) -> Iterator[Chunk]:
    """Cut chunks out of a ready list, which is as long as the reader's share."""
    ready = [(table[number % len(table)], number) for number in range(start, stop)]
    return (Chunk(ready[at : at + PAIRS_PER_CHUNK]) for at in range(0, len(ready), PAIRS_PER_CHUNK))


@dataclass(frozen=True)
class PairSource(Source):
    """``num_pairs`` pairs; every reader has a share of the numbers."""

    folder: Path
    num_pairs: int
    keys: Keys
    kind: str

    def create_reader(self, subtask: int, parallelism: int) -> MarkedReader:
        """Return the reader of one subtask; the time to make its table is not measured."""
        start, stop = share(self.num_pairs, subtask, parallelism)
        chunks = sliced if self.kind == "sliced" else produced
        return MarkedReader(chunks(make_table(self.keys), start, stop), self.folder, subtask)


def share(num_pairs: int, subtask: int, parallelism: int) -> tuple[int, int]:
    """Return the numbers of a subtask."""
    return num_pairs * subtask // parallelism, num_pairs * (subtask + 1) // parallelism


def lambdas(pairs: DataStream, key_type: TypeInformation) -> DataStream:
    """Sum by functions that are all called as the user wrote them."""
    return pairs.key_by(lambda pair: pair[0], key_type).reduce(lambda one, other: (one[0], one[1] + other[1]))


def built_in_sum(pairs: DataStream, key_type: TypeInformation) -> DataStream:
    """Sum by the built-in ``sum``, as a user who knows the API would."""
    return pairs.key_by(lambda pair: pair[0], key_type).sum(1)


FORMS: Final[dict[str, Callable[[DataStream, TypeInformation], DataStream]]] = {"lambdas": lambdas, "sum": built_in_sum}


@dataclass(frozen=True)
class Job:
    """One way to sum ``num_pairs`` pairs."""

    form: str = "sum"
    source: str = "produced"
    keys: Keys = KEYS["int"]
    num_pairs: int = NUM_PAIRS
    inspects_all: bool = False

    @property
    def name(self) -> str:
        """The name of the figure."""
        return f"shuffle {self.keys.name}, {self.form}, {self.source}"

    def build(self, environment: StreamExecutionEnvironment, folder: Path) -> None:
        """Build the program."""
        source = PairSource(folder, self.num_pairs, self.keys, self.source)
        pair_type = Types.TUPLE([self.keys.type, Types.LONG()])
        pairs = environment.from_source(source, WatermarkStrategy.no_watermarks(), "pairs", pair_type)
        keep, in_chunks = self.keep(environment.get_parallelism()), self.form == "sum"
        into_sink(
            FORMS[self.form](pairs, self.keys.type), folder, keep, inspects_all=self.inspects_all, in_chunks=in_chunks
        )

    def keep(self, parallelism: int = 2) -> Keep:
        """Keep at least the last two rounds of the table; a subtask has its share of them."""
        return Keep.last_cycles(self.num_pairs, self.keys.table, parallelism)

    def check(self, reports: Reports, num_readers: int) -> None:
        """Check that there is one output per pair, and that every key ends at its sum."""
        if self.inspects_all:
            check_num_outputs(reports, self.num_pairs)
            check_increments(reports, (self.increments(number, num_readers) for number in range(num_readers)))
        else:
            self.check_last(reports)

    def check_last(self, reports: Reports) -> None:
        """Check sinks that kept the last outputs."""
        check_num_outputs(reports, self.num_pairs)
        check_last_values(reports, self.sums())

    def sums(self) -> dict[Any, int]:
        """Return the expected sums: the key at place p of the table gets p, p + size, p + 2 * size and so on."""
        table, sums = make_table(self.keys), dict[Any, int]()
        cycles, rest = divmod(self.num_pairs, len(table))
        for place, key in enumerate(table):
            times = cycles + (place < rest)
            if times:
                sums[key] = sums.get(key, 0) + times * place + len(table) * (times * (times - 1) // 2)
        return sums

    def increments(self, subtask: int, parallelism: int) -> dict[Any, list[int]]:
        """Return the amounts by which the sums grow through one source, key by key."""
        table, increments = make_table(self.keys), dict[Any, list[int]]()
        for number in range(*share(self.num_pairs, subtask, parallelism)):
            increments.setdefault(table[number % len(table)], []).append(number)
        return increments

    def run(self, deployment: Deployment = TWO_TASK_MANAGERS) -> Run:
        """Run the job once, in a fresh cluster."""
        check = partial(self.check, num_readers=deployment.num_task_managers)
        return run_program(self.build, self.num_pairs, check, deployment)
