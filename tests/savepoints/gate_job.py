"""A program whose records producers push into a gate, with a cluster that knows the secret of the stored savepoints."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from flowlet.common import Types
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.ingest import GateClient, PartitionOffer, open_gate
from flowlet.ingest.runtime import close_producers
from flowlet.testing import MiniCluster
from tests.savepoints.stage import HERE, STAGE, keep_named
from tests.waiting import PATIENCE_S, spin_until

NUM_ROWS: Final = 20
PARTITIONS: Final = (list(range(NUM_ROWS)), list(range(100, 100 + NUM_ROWS)))
OPTIONS: Final = {
    "flowlet.gate.acknowledge": "processed",
    "execution.checkpointing.checkpoints-after-tasks-finish": "false",
}

SELDOM: Final = {"execution.checkpointing.interval": "1 h", "execution.checkpointing.dir": f"{HERE}/checkpoints"}


@contextmanager
def producers(goes_on: bool) -> Iterator[None]:
    """Run a cluster, and producers that push all rows, or one partition and half of another one until the context
    ends.
    """
    secret = bytes.fromhex(Path("../secret").read_text("ascii").strip())
    with patch.object(secrets, "token_bytes", lambda size: secret[:size]):
        cluster = MiniCluster(1, 1)
    is_over = threading.Event()
    work = _push_all if goes_on else lambda gate: _push_half(gate, is_over)
    thread = threading.Thread(target=lambda: work(_opened(cluster)))
    STAGE.environment = cluster.environment
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        STAGE.environment = None
        close_producers()
        cluster.close()


def _opened(cluster: MiniCluster) -> GateClient:
    address = f"{cluster.target.host}:{cluster.target.port}"
    secret_file = Path("../secret").absolute()
    return open_gate(
        "numbers", jobmanager=address, secret_file=secret_file, timeout_s=PATIENCE_S, wait_for_gate_s=PATIENCE_S
    )


def _push_all(gate: GateClient) -> None:
    """Push all partitions as their second attempts: rows that are in already count once."""
    for number, rows in enumerate(PARTITIONS):
        with gate.open_partition(PartitionOffer("write", number, 1)) as writer:
            writer.write_records(rows)
            writer.finish(PATIENCE_S)


def _push_half(gate: GateClient, is_over: threading.Event) -> None:
    whole, half = PARTITIONS
    with gate.open_partition(PartitionOffer("write", 0)) as writer:
        writer.write_records(whole)
        writer.finish(PATIENCE_S)
    writer = gate.open_partition(PartitionOffer("write", 1))
    writer.write_records(half[: NUM_ROWS // 2])
    spin_until(lambda: STAGE.num_of("gate") == NUM_ROWS + NUM_ROWS // 2, "the rows of one and a half partitions")
    STAGE.halves.add("gate")
    is_over.wait(PATIENCE_S)
    writer.abort("the producer ends")


def gate(env: StreamExecutionEnvironment) -> None:
    keep_named(env.from_remote_gate("numbers", type_info=Types.LONG(), producers=len(PARTITIONS)), "gate")
