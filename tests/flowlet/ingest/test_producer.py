"""Producers and gates over real sockets, in one process."""

from flowlet.common.typeinfo import Types
from flowlet.datastream.closeable_iterator import CloseableIterator
from flowlet.ingest import PartitionOffer, open_gate
from tests.flowlet.ingest.conftest import GateCluster


def test_what_a_producer_pushes_comes_out_of_the_gate(cluster: GateCluster) -> None:
    """In order, and ``finish`` means that it was processed; the gate ends after the partition that it waited for."""
    env = cluster.environment()
    stream = env.from_remote_gate("clicks", type_info=Types.LONG(), producers=1).map(lambda number: number + 1)
    results = stream.execute_and_collect()
    assert isinstance(results, CloseableIterator)
    with results:
        gate = open_gate("clicks", jobmanager=cluster.address, secret_file=cluster.secret_file)
        with gate.open_partition(PartitionOffer("a job", 0)) as writer:
            for start in range(0, 10_000, 1000):
                writer.write_records(list(range(start, start + 1000)))
            writer.finish(10.0)
        assert list(results) == list(range(1, 10_001))
