"""The peers, where they are installed, do the work of flowlet's jobs; their output is checked like ours."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.jobs import pairs, words
from bench.peers import bytewax, flink_cluster
from bench.peers import pairs as pair_peers
from bench.peers import words as word_peers

WORDS = words.Job(num_words=20_000, made_words=5_000)
PAIRS = pairs.Job(num_pairs=20_000, keys=pairs.Keys("str", 500, 500))


def test_plain_python_counts_and_sums_the_same(tmp_path: Path) -> None:
    with ExitStack() as stack:
        contenders = [
            *word_peers.contenders(stack, tmp_path, WORDS, {"plain"}),
            *pair_peers.contenders(stack, tmp_path, pairs.Job(num_pairs=20_000), {"plain"}),
        ]

        rates = [contender.run().rate for contender in contenders]

    names = [contender.name for contender in contenders]
    assert [name.rpartition(", ")[2] for name in names if name.startswith("numpy")] == ["produced", "sliced"]
    assert len(rates) == 4
    assert all(rate > 0 for rate in rates)


@pytest.mark.slow
def test_bytewax_counts_the_same(tmp_path: Path) -> None:
    if bytewax.why_missing() is not None:
        pytest.skip("Bytewax is not installed")
    with ExitStack() as stack:
        (contender,) = word_peers.contenders(stack, tmp_path, WORDS, {"bytewax"})

        assert contender.run().rate > 0
        assert contender.versions["bytewax"]


@pytest.mark.slow
def test_flink_sums_the_same(tmp_path: Path) -> None:
    if flink_cluster.why_missing() is not None:
        pytest.skip("Apache Flink is not installed")
    with ExitStack() as stack:
        (contender,) = pair_peers.contenders(stack, tmp_path, PAIRS, {"flink"})

        assert contender.run().rate > 0
        assert contender.versions["apache-flink"].startswith("2.")
