"""The settings that a job decides for its tasks, from the program to the task."""

import msgspec
import pytest

from flowlet.common import Configuration, ExecutionConfig
from flowlet.common.job_settings import BatchSettings, JobSettings
from flowlet.common.options.known_options import job_settings
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import JobGraphError


@pytest.mark.parametrize(
    "settings", [{"cancellation_interval_ms": 0}, {"cancellation_timeout_ms": -1}, {"max_record_bytes": 2**31}]
)
def test_numbers_out_of_range_are_refused_by_name(settings: dict[str, int]) -> None:
    (name,) = settings

    with pytest.raises(JobGraphError, match=name):
        JobSettings(**settings)  # type: ignore[arg-type]


def test_they_travel_as_they_are() -> None:
    settings = JobSettings(500, 0, 2**31 - 1)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=JobSettings) == settings


def test_the_execution_config_has_flinks_defaults() -> None:
    config = ExecutionConfig()

    assert (config.get_task_cancellation_interval(), config.get_task_cancellation_timeout()) == (30_000, 180_000)
    assert job_settings(Configuration(), None, "AUTOMATIC") == JobSettings(batch=BatchSettings())


def test_options_of_the_environment_reach_the_job_graph() -> None:
    found: list[JobSettings] = []
    options = {
        "task.cancellation.interval": "500",
        "task.cancellation.timeout": "0",
        "flowlet.max-record-bytes": "1000",
    }

    def submit(stream_graph: object, *_: object) -> object:
        found.append(stream_graph.settings.job)  # type: ignore[attr-defined]  # a StreamGraph
        raise JobGraphError("seen")

    environment = StreamExecutionEnvironment(Configuration.from_dict(options), submit)  # type: ignore[arg-type]  # raises before it returns
    environment.from_collection([1]).print()
    with pytest.raises(JobGraphError, match="seen"):
        environment.execute()

    assert found == [JobSettings(500, 0, 1000)]
    assert environment.get_config().get_task_cancellation_interval() == 500
    assert environment.get_config().get_task_cancellation_timeout() == 0
