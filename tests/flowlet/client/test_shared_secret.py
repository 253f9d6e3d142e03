"""Programs with one secret can read the savepoints of jobs that ran in each other's own clusters."""

from pathlib import Path

import pytest

from flowlet.client.translate import embedded_target, translate
from flowlet.common import Configuration
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError
from flowlet.graph.job_graph import JobGraph
from flowlet.graph.stream_graph import StreamGraph
from flowlet.rpc.secret import load_secret


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


KEPT = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}


@pytest.mark.parametrize(
    ("options", "is_shared", "is_needed"),
    [
        ({}, False, False),
        ({"execution.checkpointing.interval": "1 s"}, True, False),
        ({"execution.checkpointing.savepoint-dir": "/savepoints"}, True, True),
        ({"execution.state-recovery.path": "/savepoints/savepoint-1"}, True, True),
        (KEPT, True, True),
    ],
)
def test_a_job_shares_it_if_somebody_else_may_read_its_state(
    options: dict[str, str], is_shared: bool, is_needed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a job whose state stays is refused without a home: any other job might take a savepoint, which no program
    could read.
    """
    graph = graph_of(options)
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "secret"))
    secret = embedded_target(graph, in_process=True).checkpoint_secret
    assert secret == (load_secret() if is_shared else None)

    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "file" / "secret"))
    if is_needed:
        with pytest.raises(ConfigError, match="secret"):
            embedded_target(graph, in_process=True)
    else:
        assert embedded_target(graph, in_process=True).checkpoint_secret is None
