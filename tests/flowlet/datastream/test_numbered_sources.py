from collections.abc import Callable
from typing import Any

import pytest

from flowlet.common.typeinfo import Types
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors.datagen import DataGeneratorSource, RateLimiterStrategy
from flowlet.datastream.connectors.number_seq import NumberSequenceSource
from flowlet.errors import JobGraphError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NumberSequenceSource(1.5, 2), "needs two whole numbers, got 1.5 and 2"),  # type: ignore[arg-type]  # the mistake
        (lambda: NumberSequenceSource(3, 2), "a start that is not above its end, got 3 and 2"),
        (lambda: DataGeneratorSource(7, 1), "needs a function of a number, got 7"),  # type: ignore[arg-type]  # the mistake
        (lambda: DataGeneratorSource(str, 0), "needs a number of records above 0, of 64 bits, got 0"),
        (lambda: NumberSequenceSource(0, 1 << 63), "needs numbers of 64 bits"),
        (lambda: NumberSequenceSource(-(1 << 63) - 1, 0), "needs numbers of 64 bits"),
        (lambda: DataGeneratorSource(str, 1 << 63), "needs a number of records above 0, of 64 bits"),
        (
            lambda: DataGeneratorSource(str, 1, 5),  # type: ignore[arg-type]  # the mistake
            r"needs a rate such as RateLimiterStrategy",
        ),
        (lambda: RateLimiterStrategy.per_second(0), r"per_second\(\) needs a number of records above 0, got 0"),
        (lambda: RateLimiterStrategy.per_checkpoint(0), r"per_checkpoint\(\) needs a whole number"),
    ],
)
def test_mistakes_are_named_where_they_are_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        make()


def test_a_sequence_runs_in_all_subtasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)

    found = env.from_sequence(1, 5_000).map(lambda number: number * 2, Types.LONG()).execute_and_collect()

    assert sorted(found) == list(range(2, 10_001, 2))


def test_a_generator_has_the_type_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is too high for the test to feel; a single subtask gives its records in order."""
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = DataGeneratorSource(str, 20, RateLimiterStrategy.per_second(100_000), Types.STRING())

    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "texts")

    assert stream.get_type() == Types.STRING()
    assert list(stream.execute_and_collect()) == [str(number) for number in range(20)]
