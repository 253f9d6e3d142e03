"""The traces of a program that pushes into a gate, when it ends: none, but one line on the screen if it has not
finished.
"""

import pytest

from tests.flowlet.client.programs import running
from tests.flowlet.ingest.conftest import GateCluster, counts_of, running_gate
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

OPEN_GATE = """
import atexit, os, sys, threading
from flowlet.ingest import PartitionOffer, open_gate
gate = open_gate("clicks", jobmanager=os.environ["FLOWLET_JOBMANAGER"], timeout_s=30)
"""
OPEN_PARTITION = f"""{OPEN_GATE}
def opened(number=3):
    writer = gate.open_partition(PartitionOffer("load", number))
    writer.write_records([1, 2])
    return writer
"""
UNFINISHED = (
    "partition 3 (attempt 0, epoch 0) of 'load' to gate 'clicks' of job 'job of clicks' at JobManager ADDRESS was not "
    "finished when the "
    "program ended, so the gate does not count it: call finish() before"
)


def ended(cluster: GateCluster, text: str) -> tuple[int, list[str]]:
    """Run a program: exit code and lines of errors, Python's warnings with them."""
    environment = {"FLOWLET_JOBMANAGER": cluster.address, "FLOWLET_SECRET_FILE": str(cluster.secret_file)}
    with running("-W", "default", "-c", text, environment=environment) as program:
        code, _, errors = program.end()
    return code, [line.replace(cluster.address, "ADDRESS") for line in errors]


@pytest.mark.parametrize(
    ("last_lines", "code"),
    [("opened()\nsys.exit(3)", 3), ("writer = opened()\natexit.register(writer.write_records, [3])", 0)],
    ids=["dropped", "with work left for the exit"],
)
def test_a_partition_that_is_left_open_is_named_in_one_line(cluster: GateCluster, last_lines: str, code: int) -> None:
    """The line is the only sign that the partition's records do not count; the gate hears of the end at once."""
    client = running_gate(cluster)

    assert ended(cluster, OPEN_PARTITION + last_lines) == (code, [UNFINISHED])

    spin_until(lambda: counts_of(client)["subtasks"][0]["num_aborted"] == 1)
    client.cancel()


def test_the_error_that_ends_a_program_is_shown_as_ever(cluster: GateCluster) -> None:
    """The line about its partition follows."""
    client = running_gate(cluster)

    code, errors = ended(cluster, f"{OPEN_PARTITION}\nwriter = opened()\nraise ValueError('of the user')")

    assert (code, errors[-2:]) == (1, ["ValueError: of the user", UNFINISHED])
    assert errors[0] == "Traceback (most recent call last):"
    client.cancel()


def test_a_program_that_has_ended_its_partitions_says_nothing(cluster: GateCluster) -> None:
    """A program may end its partitions in a thread, or in a function that runs at its exit."""
    client = running_gate(cluster)
    text = f"""{OPEN_PARTITION}
opened(0).finish()
opened(1).abort("no more")
atexit.register(opened(2).finish)
threading.Thread(target=lambda: opened(3).finish()).start()
"""

    assert ended(cluster, text) == (0, [])

    counted = counts_of(client)["subtasks"][0]
    assert (counted["num_aborted"], counted["num_completed"]) == (1, 3)
    client.cancel()
