"""The benchmarks' jobs in small: their figures mean nothing here, but what they prove holds."""

import json
from pathlib import Path

import pytest

from bench import isolation, wordcount
from bench.report import Result

WINDOW_S = 2.0
GENEROUS_PERCENT = 40.0  # of the rate alone; bench/isolation.py gives the real figure, a busy test machine gives anything
FLAT_BYTES = 16 * 1024 * 1024

pytestmark = pytest.mark.slow


def test_a_stalled_consumer_does_not_slow_its_neighbour_on_the_same_connection(tmp_path: Path) -> None:
    """Credit stops only the channel of the consumer that stalls; what was sent to it is bounded by its credit, so memory stays flat."""
    alone, beside = isolation.compare(tmp_path, WINDOW_S)

    assert isolation.percent_of_alone(alone, beside) > GENEROUS_PERCENT
    assert all(grown < FLAT_BYTES for grown in beside.rss_growth_bytes)


def test_running_sums_over_two_taskmanagers_are_exact() -> None:
    """A million words, half of them over TCP; each word is counted at one place and none is lost (``check_sums``)."""
    sample = wordcount.measure_once(wordcount.MADE_WORDS)

    tasks = list(sample["tasks"].values())
    sums = [metrics for name, metrics in sample["tasks"].items() if name.startswith("running sum")]
    assert sample["words_per_s"] > 0
    assert len(tasks) == 1 + 2 * wordcount.PARALLELISM
    assert sum(task["num_records_in"] for task in sums) == wordcount.MADE_WORDS
    assert sum(task["num_bytes_in_remote"] for task in tasks) > 0


def test_the_words_are_the_same_every_time_and_zipf_distributed() -> None:
    lines = wordcount.make_lines(20_000)

    words = " ".join(lines).split(" ")
    assert lines == wordcount.make_lines(20_000)
    assert len(words) == 20_000
    assert all(len(line.split(" ")) == wordcount.WORDS_PER_LINE for line in lines)
    assert 1.8 < words.count("word00000") / words.count("word00001") < 2.2


def test_a_result_is_one_line_of_json_with_its_origin() -> None:
    line = Result("some case", "things/s", [3.0, 1.0, 2.0], {"note": 1}).to_json()

    document = json.loads(line)
    assert "\n" not in line
    assert {key: document[key] for key in ("name", "value", "unit", "median", "min", "max")} == {
        "name": "some case",
        "value": 2.0,
        "unit": "things/s",
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
    }
    assert document["runs"] == [3.0, 1.0, 2.0]
    assert document["git_revision"]
    assert document["machine"]["cores"] >= 1
    assert document["versions"]["python"]
