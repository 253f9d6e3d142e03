"""Metrics of functions in TaskManager processes, read over REST as Flink's are."""

from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.client.remote import RemoteTarget
from tests.integration.metrics_job import NUM_RECORDS
from tests.waiting import PATIENCE_S

PROGRAM = Path(__file__).resolve().parent / "metrics_job.py"

pytestmark = pytest.mark.slow


def test_metrics_of_functions_are_read_over_rest(cluster: Cluster) -> None:
    """Metrics are found by subtask, operator, groups and name; the key selector, which needs its ``open``, has dealt
    all records out.
    """
    process = cluster.start(str(PROGRAM), "--jobmanager", cluster.address, name="metrics")
    assert process.wait(PATIENCE_S) == 0, process.stderr
    job_id = process.wait_for_line(r"^job (\w+)$").group(1)
    host, _, port = cluster.address.rpartition(":")
    client = RemoteTarget(host, int(port), cluster.secret_file).open(0)
    try:
        document = client.call(lambda api: api.job(job_id))
        vertex = next(
            each["id"] for each in document["vertices"] if any("measured" in name for name in each["operators"])
        )
        metrics: list[Any] = client.call(lambda api: api.vertex_metrics(job_id, vertex))
        chosen: list[Any] = client.call(lambda api: api.vertex_metrics(job_id, vertex, ["0.measured.values.all"]))
    finally:
        client.close()

    found = {each["id"]: each["value"] for each in metrics}
    counts = [found[f"{subtask}.measured.values.all"] for subtask in (0, 1)]
    assert sum(counts) == NUM_RECORDS
    assert all(counts)
    assert sum(found[f"{subtask}.measured.values.sizes.sum"] for subtask in (0, 1)) == sum(range(NUM_RECORDS))
    assert max(found[f"{subtask}.measured.values.largest"] for subtask in (0, 1)) == NUM_RECORDS - 1
    assert chosen == [{"id": "0.measured.values.all", "value": counts[0]}]
