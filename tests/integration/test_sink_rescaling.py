"""A job with a file sink is cancelled, and another one goes on from its checkpoint with more or fewer subtasks."""

import re
import time
from pathlib import Path

import pytest

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import MapFunction, StreamExecutionEnvironment
from flowlet.errors import JobExecutionError
from tests.flowlet.connectors.files.file_formats import FORMATS, Format, fingerprint
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

NUM_RECORDS = 20_000
PACE_S = 0.05  # of 500 records, in the chain of the source, until the first job is cancelled
NUM_EASY = 15_000  # a record behind them takes as long by itself: the first job does not end before it is cancelled
TEXT, PARQUET = FORMATS[0], FORMATS[3]


class Paced(MapFunction):
    """Makes records of a format, slowly until there is a file."""

    def __init__(self, hurry: Path, *, of_tuples: bool) -> None:
        self._hurry = hurry
        self._of_tuples = of_tuples

    def map(self, value: int) -> tuple[int] | int:
        if (value % 500 == 0 or value >= NUM_EASY) and not self._hurry.exists():
            time.sleep(PACE_S)
        return (value,) if self._of_tuples else value


def program(fmt: Format, folder: Path, parallelism: int, recovery_path: str = "") -> StreamExecutionEnvironment:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(folder / "checkpoints"))
    configuration.set_string("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION")
    if recovery_path:
        configuration.set_string("execution.state-recovery.path", recovery_path)
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(parallelism)
    env.enable_checkpointing(30)
    numbers = env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).uid("numbers")
    output_type = Types.TUPLE([Types.LONG()]) if fmt.of_tuples else Types.LONG()
    paced = numbers.map(Paced(folder / "hurry", of_tuples=fmt.of_tuples), output_type=output_type).uid("paced")
    paced.set_parallelism(1).rebalance().sink_to(fmt.sink(folder / "output")).uid("files")
    return env


@pytest.mark.parametrize(
    ("fmt", "before", "after"),
    [
        (TEXT, 2, 1),
        *(pytest.param(*each, marks=pytest.mark.long) for each in [(TEXT, 2, 3), (PARQUET, 2, 1), (PARQUET, 3, 2)]),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_another_parallelism_loses_and_repeats_no_record(
    fmt: Format, before: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second job takes over files that went on, and records that the cancelled job had prepared and not
    committed.
    """
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "secret"))
    job = program(fmt, tmp_path, before).execute_async("former")
    spin_until(lambda: list(tmp_path.glob("checkpoints/*/chk-[3-9]/_metadata")), "the third checkpoint")
    job.cancel().result()
    with pytest.raises(JobExecutionError, match="was cancelled") as caught:
        job.get_job_execution_result().result()
    (retained,) = re.findall(r"stays at (\S+);", str(caught.value))
    (tmp_path / "hurry").touch()
    assert len(fmt.visible(tmp_path / "output")) < NUM_RECORDS

    program(fmt, tmp_path, after, retained).execute("latter")

    assert fingerprint(fmt.visible(tmp_path / "output")) == fingerprint(range(NUM_RECORDS))
