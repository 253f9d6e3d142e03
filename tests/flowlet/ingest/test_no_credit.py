"""The messages that a producer hears from the JobManager while it waits for credit."""

from dataclasses import replace
from pathlib import Path

import pytest

from flowlet.ingest import (
    GateDescription,
    GateEndedError,
    GateEndpoint,
    GateError,
    GateLostError,
    GateNotFoundError,
    PartitionOffer,
    runtime,
)
from flowlet.ingest import lookup as no_credit
from flowlet.ingest import runtime as stall
from flowlet.ingest.lookup import why_in_vain
from flowlet.ingest.runtime import producer_runtime
from tests.flowlet.client.jobs import released
from tests.flowlet.ingest.conftest import GateCluster, endlessly, refused, running_gate
from tests.waiting import spin_until


def ask(description: GateDescription, secret_file: Path | None) -> GateError | None:
    return producer_runtime().run(why_in_vain(description, secret_file))


def test_a_gate_that_is_only_slow_is_waited_for(cluster: GateCluster) -> None:
    running_gate(cluster)

    assert ask(cluster.open().description, cluster.secret_file) is None


def test_without_secret_or_jobmanager_nobody_can_tell(cluster: GateCluster, tmp_path: Path) -> None:
    """The producer goes on; heartbeats still find a TaskManager that stands still."""
    running_gate(cluster)
    description = cluster.open().description

    assert ask(description, tmp_path / "missing") is None
    assert ask(replace(description, jobmanager="127.0.0.1:1"), cluster.secret_file) is None


def test_a_gate_that_is_elsewhere_is_lost_here(cluster: GateCluster) -> None:
    """The error names the gate and both TaskManagers."""
    running_gate(cluster)
    description = cluster.open().description
    (place,) = description.endpoints

    error = ask(replace(description, endpoints=(GateEndpoint("127.0.0.1", 1),)), cluster.secret_file)

    assert isinstance(error, GateLostError)
    assert "subtask 0 of gate 'clicks' of job 'job of clicks'" in str(error)
    assert f"runs on the TaskManager at 127.0.0.1:{place.port} now, not at 127.0.0.1:1" in str(error)


def test_a_gate_that_has_ended_or_belongs_to_another_job_is_said_to_have_ended(cluster: GateCluster) -> None:
    client = running_gate(cluster)
    description = cluster.open().description

    other = ask(replace(description, job_id="00" * 16), cluster.secret_file)
    unknown = ask(replace(description, name="other"), cluster.secret_file)
    client.cancel()
    spin_until(lambda: client.get_job_status().result().is_globally_terminal_state())
    ended = ask(description, cluster.secret_file)

    assert isinstance(other, GateEndedError)
    assert "its name belongs to job 'job of clicks'" in str(other)
    assert isinstance(unknown, GateNotFoundError)
    assert isinstance(ended, GateEndedError)


def test_a_writer_that_waits_for_credit_gets_the_answer(cluster: GateCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's own thread is parked; the question runs on the loop and wakes it with the error."""
    monkeypatch.setattr(stall, "NO_CREDIT_QUESTION_S", 0.0)
    monkeypatch.setattr(runtime, "_CHECK_INTERVAL_S", 0.01)
    running_gate(cluster, held="asked")

    async def gone(description: GateDescription) -> GateError:
        return GateLostError(f"{description} moved")

    monkeypatch.setattr(no_credit, "why_in_vain", gone)

    with cluster.open().open_partition(PartitionOffer("job", 0)) as writer, refused(GateLostError, r"clicks.* moved"):
        endlessly(writer)
    released["asked"].set()
