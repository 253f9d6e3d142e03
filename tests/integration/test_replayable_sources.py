"""Jobs that read a sequence or a generator fail for good, and others go on from their checkpoints: each number counts
once.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlet.common.typeinfo import Types
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream import DataStream, StreamExecutionEnvironment
from flowlet.datastream.connectors.datagen import DataGeneratorSource, RateLimiterStrategy
from flowlet.datastream.connectors.number_seq import NumberSequenceSource
from flowlet.errors import JobExecutionError
from tests.databases import SqliteFile, checksums
from tests.integration.jobs import stays_at
from tests.integration.killing_sink import deaths, die, environment, recovery_from, row_of, sink

pytestmark = [pytest.mark.slow, pytest.mark.long]

NUM_RECORDS = 12_000
ROW = Types.TUPLE([Types.LONG(), Types.STRING()])


class Deadly:
    """Makes rows; kills its process at one number, for which there are checkpoints already."""

    def __init__(self, evidence: Path, number: int | None, pace_s: float = 0.0) -> None:
        self._evidence = evidence
        self._number = number
        self._pace_s = pace_s

    def __call__(self, number: int) -> tuple[int, str]:
        if number == self._number:
            die(self._evidence, str(number))
        if self._pace_s and number % 100 == 0:
            time.sleep(self._pace_s)
        return row_of(number)


def sequence(env: StreamExecutionEnvironment, evidence: Path, deadly: int | None) -> DataStream:
    numbers = env.from_source(
        NumberSequenceSource(0, NUM_RECORDS - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    # On chunks of 1,000 numbers: a barrier passes between them, and behind each.
    return numbers.uid("numbers").map(Deadly(evidence, deadly, 0.04), output_type=ROW).uid("rows")


def generator(env: StreamExecutionEnvironment, evidence: Path, deadly: int | None) -> DataStream:
    source = DataGeneratorSource(Deadly(evidence, deadly), NUM_RECORDS, RateLimiterStrategy.per_second(6_000), ROW)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")


@pytest.mark.parametrize("read", [sequence, generator])
def test_a_source_is_exact_when_it_is_killed_and_goes_on_with_other_readers(
    read: Callable[[StreamExecutionEnvironment, Path, int | None], DataStream], tmp_path: Path
) -> None:
    """A source is exact with two subtasks, then three, then one; each of the first two jobs loses a TaskManager after
    some splits were handed out.
    """
    database = SqliteFile(tmp_path)
    database.execute("CREATE TABLE t (id BIGINT, name TEXT)")
    retained = ""
    for parallelism, deadly in ((2, 7_600), (3, NUM_RECORDS - 1), (1, None)):
        env = environment(tmp_path / str(parallelism), attempts=0, parallelism=parallelism)
        if retained:
            env.configure(recovery_from(retained))
        read(env, tmp_path, deadly).rebalance().add_sink(sink(database.url, tmp_path)).uid("database")
        if deadly is None:
            env.execute("last")
            break
        with pytest.raises(JobExecutionError) as failed:
            env.execute(f"with {parallelism}")
        retained = stays_at(failed.value)

    assert deaths(tmp_path) == ["7600", str(NUM_RECORDS - 1)]
    assert checksums(database.execute("SELECT id, name FROM t")) == checksums(map(row_of, range(NUM_RECORDS)))
