"""``flowlet.max-record-bytes`` holds wherever records become bytes: between tasks, in the files of a sorted input, in
flight.
"""

import pytest

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flowlet.errors import JobExecutionError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_servers")]
LIMIT = 40_000
PAIR = Types.TUPLE([Types.LONG(), Types.STRING()])


def environment(limit: int, mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
    options = {"flowlet.max-record-bytes": str(limit)}
    if mode is RuntimeExecutionMode.BATCH:
        options["execution.sorted-inputs.memory"] = "64 kb"
    env = StreamExecutionEnvironment(Configuration.from_dict(options)).set_parallelism(2)
    env.set_runtime_mode(mode)
    return env


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING])
@pytest.mark.parametrize("is_declared", [False, True])
def test_many_records_below_a_small_limit_pass(mode: RuntimeExecutionMode, *, is_declared: bool) -> None:
    """Together they take much more than the limit, so that they are cut for each exchange and each sorted run."""
    env = environment(LIMIT, mode)
    pairs = env.from_collection(range(600), Types.LONG()).map(
        lambda number: (number % 7, f"{number:1000}"), output_type=PAIR if is_declared else None
    )
    counts = pairs.key_by(lambda pair: pair[0]).map(lambda pair: (pair[0], int(pair[1])))

    with counts.execute_and_collect() as results:  # type: ignore[union-attr]  # an iterator
        found = sorted(results)

    assert found == sorted((number % 7, number) for number in range(600))


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING])
def test_a_record_above_the_limit_is_refused_with_the_option(mode: RuntimeExecutionMode) -> None:
    env = environment(LIMIT, mode)
    texts = env.from_collection(range(4), Types.LONG()).map(lambda number: (number, "x" * 2 * LIMIT))
    results = texts.key_by(lambda pair: pair[0]).map(lambda pair: pair[0])

    with pytest.raises(JobExecutionError, match=r"flowlet\.max-record-bytes"), results.execute_and_collect() as found:  # type: ignore[union-attr]
        list(found)
