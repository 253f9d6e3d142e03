"""Who shares a secret can read the savepoints of jobs in clusters of their programs' own."""

from pathlib import Path

import pytest

from flowlet.client.embedded import EmbeddedTarget, Sharing
from flowlet.client.translate import embedded_target, translate
from flowlet.common import Configuration
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError
from flowlet.graph.job_graph import JobGraph
from flowlet.graph.stream_graph import StreamGraph


def graph_of(options: dict[str, str]) -> JobGraph:
    found: list[StreamGraph] = []

    def submit(graph: StreamGraph, *_: object) -> object:
        found.append(graph)
        raise ConfigError("seen enough")

    env = StreamExecutionEnvironment(Configuration.from_dict(options), submit=submit)  # type: ignore[arg-type]  # it never returns
    env.from_collection([1]).print()
    with pytest.raises(ConfigError, match="seen enough"):
        env.execute()
    return translate(found[0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Sharing.NONE),
        ({"execution.checkpointing.interval": "1 s"}, Sharing.WANTED),
        ({"execution.checkpointing.savepoint-dir": "/savepoints"}, Sharing.NEEDED),
        ({"execution.state-recovery.path": "/savepoints/savepoint-1"}, Sharing.NEEDED),
        (
            {
                "execution.checkpointing.interval": "1 s",
                "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            },
            Sharing.NEEDED,
        ),
    ],
)
def test_a_job_shares_it_if_somebody_else_may_read_its_state(options: dict[str, str], expected: Sharing) -> None:
    assert embedded_target(graph_of(options), in_process=True).shares_checkpoints is expected


@pytest.mark.slow
def test_without_a_home_only_a_job_whose_state_stays_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other job runs; it might take a savepoint, which nobody could read."""
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "file" / "secret"))

    with pytest.raises(ConfigError, match="secret"):
        EmbeddedTarget(1, in_process=True, shares_checkpoints=Sharing.NEEDED).open(1)
    EmbeddedTarget(1, in_process=True, shares_checkpoints=Sharing.WANTED).open(1).close()
