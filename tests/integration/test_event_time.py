"""Event time, alignment and latency markers across real TaskManager processes."""

from pathlib import Path

import pytest

from bench.cluster import Cluster, Process
from tests.integration.event_time_job import NUM_KEYS, NUM_RECORDS, WINDOW_MS
from tests.waiting import PATIENCE_S

PROGRAM = Path(__file__).resolve().parent / "event_time_job.py"

pytestmark = pytest.mark.slow


def program(cluster: Cluster, name: str) -> Process:
    process = cluster.start(str(PROGRAM), name, "--jobmanager", cluster.address, name=name)
    assert process.wait(PATIENCE_S) == 0, process.stderr
    return process


def test_records_out_of_order_are_counted_in_their_windows(cluster: Cluster) -> None:
    """Every window comes once and complete, though watermarks of two sources reach two subtasks while they read."""
    found = program(cluster, "windows")

    assert found.wait_for_line(r"^windows (\d+) (\d+)$").groups() == (str(NUM_RECORDS // WINDOW_MS * NUM_KEYS), "0")


def test_a_fast_source_waits_for_a_slow_one_and_markers_tell_the_latency(cluster: Cluster) -> None:
    found = program(cluster, "aligned")

    assert int(found.wait_for_line(r"^waited (\d+)$").group(1)) > 0
    assert 0 <= float(found.wait_for_line(r"^latency (\S+)$").group(1)) < 1000 * PATIENCE_S
