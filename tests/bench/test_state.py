"""Keyed state and checkpoints; their figures mean nothing here, but their results are checked."""

import pytest

from bench import checkpoint, state
from bench.jobs.keyed_states import BACKENDS, KEYS, VALUES, Content, measure


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_is_restored_from_its_snapshot(keys: str, values: str, backend: str) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    times = measure(Content(keys, values, 300), BACKENDS[backend])

    assert times.num_bytes > 300


@pytest.mark.long
def test_words_counted_in_state_are_right() -> None:
    pytest.importorskip("rocksdict")
    results = state.run(1, quick=True, parts=["words"])

    assert {result.name for result in results} >= {
        "wordcount state, produced",
        "wordcount state, produced / wordcount called, produced",
    }


@pytest.mark.long
def test_a_job_with_checkpoints_counts_right_and_says_what_they_took() -> None:
    results = checkpoint.run(1, quick=True)

    [with_them] = [result for result in results if result.name.endswith("every 20 ms")]
    [sample] = with_them.details["samples"]
    assert sample["num_completed"] > 0
    assert sample["state_bytes"] > 1000
    [latencies] = [result for result in results if result.name.endswith("every 20 ms: latency p99")]
    [sample] = latencies.details["samples"]
    assert sample["num_checkpoints"] > 0
