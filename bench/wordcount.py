"""The headline figure: ten million Zipf words through source -> flat_map(split) -> key_by(word) -> running sum -> discard.

Side:  any; the classes below run inside the TaskManagers.
Job:   source parallelism 1, split and sum parallelism 2, two TaskManager processes with one slot each, data over TCP. 10,000 distinct
       words, lines of 10 words, fixed seed. A million words are made before the clock starts and the source cycles through them.
Rate:  words / (last sum finished - first poll of the source), both read on the machine's monotonic clock inside the job.
Proof: at its end every sum operator writes its sums down; together they must equal ``collections.Counter`` times the cycles.
"""

import itertools
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.cluster import Cluster
from bench.report import ProcessUse, Result
from flowlet.client.executor import RemoteTarget, execute
from flowlet.graph.job_graph import JobEdge, JobGraph, JobVertex, stable_id
from flowlet.graph.partitioner import KeyGroups, Rebalance
from flowlet.operators.chain import ChainedOperator
from flowlet.operators.keyed import KeyedSumOperator
from flowlet.operators.sinks import DiscardSink
from flowlet.operators.source import Source, SourceOperator, SourceReader
from flowlet.operators.transform import FlatMapOperator
from flowlet.records import Chunk

NUM_DISTINCT = 10_000
WORDS_PER_LINE = 10
LINES_PER_CHUNK = 200
MADE_WORDS = 1_000_000
NUM_WORDS = 10_000_000
PARALLELISM = 2
END_TIMEOUT_S = 300.0


def make_lines(num_words: int = MADE_WORDS, seed: int = 1) -> list[str]:
    """Lines of Zipf-distributed words: the word of rank r is drawn with a probability proportional to 1 / r."""
    weights = itertools.accumulate(1.0 / rank for rank in range(1, NUM_DISTINCT + 1))
    vocabulary = [f"word{number:05d}" for number in range(NUM_DISTINCT)]
    drawn = random.Random(seed).choices(vocabulary, cum_weights=list(weights), k=num_words)
    return [" ".join(drawn[start : start + WORDS_PER_LINE]) for start in range(0, num_words, WORDS_PER_LINE)]


def split(line: str) -> list[tuple[str, int]]:
    """The user's function."""
    return [(word, 1) for word in line.split()]


def word_of(pair: tuple[str, int]) -> str:
    """The user's key selector."""
    return pair[0]


class ZipfReader:
    """Cycles through the lines in chunks; writes the moment of its first poll into a file."""

    def __init__(self, folder: Path, num_words: int) -> None:
        self._start_file = folder / "start"
        lines = make_lines()
        self._chunks = [lines[at : at + LINES_PER_CHUNK] for at in range(0, len(lines), LINES_PER_CHUNK)]
        self._left = itertools.chain.from_iterable(itertools.repeat(self._chunks, num_words // MADE_WORDS))
        self._has_started = False

    def poll_chunk(self) -> Chunk | None:
        """The next 200 lines."""
        if not self._has_started:
            self._has_started = True
            self._start_file.write_text(str(time.monotonic_ns()), encoding="ascii")
        lines = next(self._left, None)
        return None if lines is None else Chunk(lines.copy())  # the consumer owns the list

    def close(self) -> None:
        """Nothing to close."""


class ZipfSource(Source):
    """``num_words`` words in lines of ten."""

    def __init__(self, folder: Path, num_words: int) -> None:
        self._folder, self._num_words = folder, num_words

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """The one reader; makes the lines, which is not measured."""
        assert parallelism == 1
        return ZipfReader(self._folder, self._num_words)


class ReportingSum(KeyedSumOperator):
    """The sum of the runtime; at its end it writes down when that was and what the final sums are, at no cost per record."""

    def __init__(self, folder: Path) -> None:
        super().__init__(word_of, 1, name="running sum")
        self._folder = folder

    def finish(self) -> None:
        """The input of this subtask is over."""
        report = {"end_ns": time.monotonic_ns(), "sums": dict(self._final_records())}
        (self._folder / f"sums-{self.ctx.subtask}").write_text(json.dumps(report), encoding="ascii")
        super().finish()


def build(folder: Path, num_words: int) -> JobGraph:
    """The job, as the DataStream API would build it."""
    source_chain = [ChainedOperator(SourceOperator(ZipfSource(folder, num_words)), -1)]
    split_chain = [ChainedOperator(FlatMapOperator(split, name="split"), -1)]
    sum_chain = [ChainedOperator(ReportingSum(folder), -1), ChainedOperator(DiscardSink(), 0)]
    source = JobVertex(stable_id("source"), "Source: Zipf lines", 1, chain=source_chain)
    splits = JobVertex(stable_id("split"), "split", PARALLELISM, chain=split_chain)
    sums = JobVertex(stable_id("sum"), "running sum -> Sink: discard", PARALLELISM, chain=sum_chain)
    edges = [JobEdge(source.id, 0, splits.id, Rebalance()), JobEdge(splits.id, 0, sums.id, KeyGroups(word_of))]
    return JobGraph("bench wordcount", vertices=[source, splits, sums], edges=edges)


def check_sums(folder: Path, num_words: int) -> int:
    """The moment at which the last sum operator finished.

    Raises:
        AssertionError: a word was lost, counted twice, or counted at two places.
    """
    found: Counter[str] = Counter()
    reports = [json.loads(file.read_text(encoding="ascii")) for file in sorted(folder.glob("sums-*"))]
    assert len(reports) == PARALLELISM, f"{len(reports)} sum operators reported"
    for report in reports:
        assert not found.keys() & report["sums"].keys(), "a word was counted by two subtasks"
        found.update(report["sums"])
    cycles = num_words // MADE_WORDS
    expected = Counter(itertools.chain.from_iterable(line.split() for line in make_lines()))
    assert found == Counter({word: count * cycles for word, count in expected.items()}), "the sums are wrong"
    return max(int(report["end_ns"]) for report in reports)


def measure_once(num_words: int) -> dict[str, Any]:
    """One run in a fresh cluster: words/s and where the time went."""
    with tempfile.TemporaryDirectory() as name, Cluster(Path(name)) as cluster:
        folder = Path(name)
        host, _, port = cluster.address.rpartition(":")
        job = execute(build(folder, num_words), RemoteTarget(host, int(port), cluster.secret_file))
        try:
            before = [ProcessUse.of(tm.pid).cpu_s for tm in cluster.task_managers]
            job.wait(END_TIMEOUT_S)
            after = [ProcessUse.of(tm.pid) for tm in cluster.task_managers]
            document = job.metrics()
        finally:
            job.close()
        end_ns, start_ns = check_sums(folder, num_words), int((folder / "start").read_text(encoding="ascii"))
    return {
        "words_per_s": num_words / ((end_ns - start_ns) / 1e9),
        "seconds": (end_ns - start_ns) / 1e9,
        "cpu_s_per_tm": [new.cpu_s - old for new, old in zip(after, before, strict=True)],
        "rss_bytes_per_tm": [use.rss_bytes for use in after],
        "tasks": {
            f"{vertex['name']} {subtask['subtask']}": subtask["metrics"]
            for vertex in document["vertices"]
            for subtask in vertex["subtasks"]
        },
    }


def run(num_runs: int, num_words: int = NUM_WORDS) -> list[Result]:
    """Run the job ``num_runs`` times, each in a fresh cluster."""
    samples = [measure_once(num_words) for _ in range(num_runs)]
    details = {"num_words": num_words, "distinct": NUM_DISTINCT, "parallelism": PARALLELISM, "sums_verified": True, "samples": samples}
    return [Result("wordcount", "words/s", [sample["words_per_s"] for sample in samples], details)]
