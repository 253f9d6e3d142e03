"""The benchmarks' jobs in small: their figures mean nothing here, but their checks hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import channels, isolation, latency, memory, scaling, startup, transport, wakeup
from bench.jobs import columns, pairs, words
from bench.percentiles import RECORDS_PER_S, percentile
from bench.report import Result
from bench.transports.common import PayloadSource, Verifier, WrongDataError

WINDOW_S = 2.0
# Of the rate alone; bench/isolation.py gives the real figure, a busy test machine gives anything.
GENEROUS_PERCENT = 40.0
FLAT_BYTES = 16 * 1024 * 1024

pytestmark = pytest.mark.slow


def in_test_run(cases: list[tuple[str, ...]], *every_time: tuple[str, ...]) -> list[Any]:
    """Return the cases; all but those of ``every_time`` are left to ``make test-long``: each starts a cluster of its
    own.
    """
    return [pytest.param(*case, marks=() if case in every_time else pytest.mark.long) for case in cases]


@pytest.mark.long
def test_a_stalled_consumer_does_not_slow_its_neighbour_on_the_same_connection(tmp_path: Path) -> None:
    """Credit stops only the channel of the consumer that stalls; data that was sent to it is bounded by its credit, so
    memory stays flat.
    """
    alone, beside = isolation.compare(tmp_path, WINDOW_S)

    assert isolation.percent_of_alone(alone, beside) > GENEROUS_PERCENT
    assert all(grown < FLAT_BYTES for grown in beside.rss_growth_bytes)


@pytest.mark.parametrize(
    ("form", "topology"),
    [*in_test_run([(form, "chained") for form in words.FORMS], ("called", "chained")), ("sum", "unchained")],
)
def test_every_running_count_over_two_taskmanagers_is_exact(form: str, topology: str) -> None:
    """Each word counts up from 1 at one place, and no word is lost; half of the words go over TCP (``Job.check``)."""
    job = words.Job(form, "produced", topology, num_words=100_000, made_words=30_000, inspects_all=True)

    run = job.run()

    tasks = run.details["tasks"]
    sums = [metrics for name, metrics in tasks.items() if "checked sink" in name]
    assert run.rate > 0
    assert len(tasks) == (4 if topology == "chained" else 5)
    assert sum(task["num_records_in"] for task in sums) == job.num_words
    assert sum(task["num_bytes_in_remote"] for task in tasks.values()) > 0


@pytest.mark.parametrize(
    ("kind", "form"), in_test_run([("int", "lambdas"), ("int", "sum"), ("str", "sum")], ("str", "sum"))
)
def test_every_running_sum_of_pairs_is_exact_and_in_order(kind: str, form: str) -> None:
    """Running sums are exact and in order, also with more keys than a dictionary of the writers holds
    (``Job.check``).
    """
    keys = pairs.Keys("int", 100, 2000) if kind == "int" else pairs.Keys("str", 40_000, 40_000)
    job = pairs.Job(form, "produced", keys, num_pairs=100_000, inspects_all=True)

    run = job.run()

    assert run.rate > 0


@pytest.mark.parametrize("form", in_test_run([(form,) for form in columns.FORMS], ("rows",)))
def test_every_running_sum_of_columns_is_exact(form: str) -> None:
    keys = pairs.Keys("int", 100, 2048)

    run = columns.Job(form, "produced", keys, num_rows=100_000, inspects_all=True).run()

    assert run.rate > 0


@pytest.mark.long
def test_the_last_counts_of_a_timed_run_are_those_of_all_words() -> None:
    run = words.Job("sum", "sliced", num_words=200_000, made_words=30_000).run()

    assert len(run.details["cpu_s_per_tm"]) == words.PARALLELISM


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


@pytest.mark.long
def test_the_network_stack_and_raw_sockets_move_every_buffer_of_the_transport_bench() -> None:
    """Consumers compare every byte here, and both sides' counts per channel are equal (``transport.measure``)."""
    cases = ["raw", "loops-1", "loops-100", "threads-1", "threads-100"]

    results = transport.run(1, quick=True, cases=cases)

    figures, ratios = results[: len(cases)], results[len(cases) :]
    assert [result.name for result in figures] == [f"transport {case}" for case in cases]
    assert [result.is_peer for result in figures] == [True, False, False, False, False]
    assert all(result.details["samples"][0]["num_bytes"] > 0 for result in figures)
    assert all(result.details["cpu_ratio_to_best_raw"][0] > 0 for result in figures)
    assert [result.name for result in ratios] == [f"transport {case} / best raw" for case in cases[1:]]
    assert ratios[0].runs[0] == pytest.approx(figures[1].runs[0] / figures[0].runs[0])


@pytest.mark.long
def test_ratios_of_the_transport_bench_are_to_the_best_raw_sockets() -> None:
    """A network stack is compared with the best raw sockets, not with a kernel that paces the loopback; the job's
    records all arrive.
    """
    cases = ["raw", "raw-reno", "job-1", "job-100"]

    results = transport.run(1, quick=True, cases=cases)

    best = max(results[0].runs[0], results[1].runs[0])
    ratios = {result.name: result.runs[0] for result in results[len(cases) :]}
    assert ratios == {
        f"transport {case} / best raw": pytest.approx(results[cases.index(case)].runs[0] / best) for case in cases[2:]
    }


def test_function_calls_per_buffer_are_counted_on_both_threads_of_both_sides(tmp_path: Path) -> None:
    """The count of calls does not change on a busy machine; its bound is far above today's 150."""
    (result,) = transport.run(1, quick=True, cases=["threads-1"], calls=tmp_path / "calls")

    assert all(10 < calls < 1000 for calls in result.details["samples"][0]["calls_per_buffer"])
    table = (tmp_path / "calls" / "threads-1-producer.txt").read_text(encoding="utf-8")
    assert "emit_segments" in table  # the task thread
    assert "_write_out" in table  # the loop thread


@pytest.mark.long
@pytest.mark.parametrize("case", sorted(transport.NEEDS))
def test_the_peers_of_the_transport_bench_move_every_buffer(case: str) -> None:
    if not transport.is_installed(case):
        pytest.skip(f"{transport.NEEDS[case]} comes with the extra 'bench'")

    (result,) = transport.run(1, quick=True, cases=[case])

    assert result.details["samples"][0]["num_bytes"] > 0
    assert result.is_peer
    assert json.loads(result.to_json())["versions"][transport.PACKAGES[case]]


def test_the_consumer_of_the_transport_bench_notices_lost_swapped_torn_and_changed_buffers() -> None:
    source = PayloadSource(1)
    first, second, torn, changed = (source.new_buffer() for _ in range(4))
    for buffer in (first, second):
        source.label_next(buffer)
    torn[:8] = changed[:8] = changed[-8:] = first[:8]
    torn[-8:] = second[:8]
    changed[100] ^= 1

    for bad in (second, torn, changed, first[:-1]):
        with pytest.raises(WrongDataError):
            Verifier(1, lambda: None).check(memoryview(bad))
    verifier = Verifier(1, lambda: None)
    verifier.check(memoryview(first))
    verifier.check(memoryview(second))
    assert verifier.num_received == source.num_sent == [2]


def test_rounds_of_the_transport_bench_change_who_runs_first() -> None:
    cases = list(transport.CASES)

    rounds = transport.orders(cases, 6)

    assert all(sorted(order) == sorted(cases) for order in rounds)
    assert len({order[0] for order in rounds}) > 1


@pytest.mark.long
def test_a_thousand_channels_move_every_buffer_too() -> None:
    results = channels.run(1, quick=True)

    names = ["channels 1", "channels 100", "channels 1,000", "channels 100 / channels 1", "channels 1,000 / channels 1"]
    assert [result.name for result in results] == names
    assert all(rate > 0 for result in results for rate in result.runs)


@pytest.mark.long
def test_one_taskmanager_counts_the_same_words_as_two() -> None:
    results = scaling.run(1, quick=True, forms=["sum"])

    assert [result.unit for result in results] == ["words/s", "words/s", "x"]
    assert results[2].runs[0] == pytest.approx(results[0].runs[0] / results[1].runs[0])


@pytest.mark.long
def test_a_first_job_gives_its_result_in_this_process_and_on_children() -> None:
    samples = [startup.measure(parallelism) for parallelism in startup.CASES.values()]

    assert all(0 < sample["seconds"] < sample["seconds_to_exit"] for sample in samples)


@pytest.mark.long
def test_a_stalled_consumer_and_broken_off_reads_leave_nothing_behind() -> None:
    """The memory bench in small (three seconds of stall, 600 cycles over six connections) leaves no memory behind."""
    stall, cycles = memory.run(1, quick=True)

    assert stall.runs[0] < 8.0, stall.details
    assert sum(stall.details["samples"][0]["cpu_s_per_tm"]) < 1.0, "a stalled job spins"
    assert cycles.details["samples"][0]["leaked"] == {}
    assert cycles.runs == [0.0]


def test_the_memory_bench_sees_what_grows_and_what_is_left() -> None:
    samples = [(0.0, [1, 5]), (1.2, [7, 5]), (2.4, [10, 5]), (3.6, [9, 4])]
    before = memory.Held(buffers=1, partitions=0, fds=5, threads=2, tasks=0, objects={"netstack.A": 3})
    after = memory.Held(buffers=3, partitions=0, fds=4, threads=2, tasks=0, objects={"netstack.A": 3, "netstack.B": 1})

    assert memory.growth(samples) == [3, 0]
    assert after.more_than(before) == {"buffers": 2, "objects of netstack.B": 1}


@pytest.mark.long
def test_every_record_of_the_latency_bench_arrives_once_and_in_order() -> None:
    """Every record arrives once and in order: alone, with a buffer timeout, and beside CPU-bound tasks in the latency
    mode (the sink and ``latency.measure`` check).
    """
    results = latency.run(1, quick=True)

    at_once, buffered, beside = (result.details["samples"][0] for result in results[::2])
    names = [f"latency {setting.name}, {key}" for setting in latency.QUICK_SETTINGS for key in ("p50", "p99")]
    assert [result.name for result in results] == names
    assert all(
        0 < each["p50_us"] <= each["p99_us"] <= each["p99.9_us"] <= each["max_us"]
        for each in (at_once, buffered, beside)
    )
    assert [result.runs[0] for result in results[:2]] == [at_once["p50_us"], at_once["p99_us"]]
    assert at_once["num_records"] == latency.QUICK_SECONDS * RECORDS_PER_S
    assert at_once["neighbour_units_per_s"] == []
    assert len(beside["neighbour_units_per_s"]) == 2
    assert all(units > 0 for units in beside["neighbour_units_per_s"])


def test_percentiles_are_values_that_were_measured() -> None:
    assert [percentile(range(1, 1001), share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    assert percentile([7], 0.5) == 7
    assert percentile([1, 2, 3], 0.99) == 3


@pytest.mark.long
def test_a_parked_task_wakes_for_data_and_for_nothing_else() -> None:
    """A thread and TCP wake a parked task once for every record, and no wake-up is lost; idle tasks run nothing
    (``bench/wakeup.py`` checks).
    """
    by_thread, by_process, idle = wakeup.run(1, quick=True)

    for result in (by_thread, by_process):
        sample = result.details["samples"][0]
        assert 0 < sample["p50_us"] <= sample["p90_us"] <= sample["p99_us"] <= sample["max_us"]
        assert sample["p50_us"] <= sample["from_sent_p50_us"]
        assert sample["num_wakeups"] + sample["num_not_parked"] == wakeup.QUICK_WAKEUPS - 1
    sample = idle.details["samples"][0]
    assert sample["num_tasks"] == wakeup.QUICK_IDLE_TASKS
    assert 0 < sample["wakeups_per_task_and_s"] <= 2, (
        "idle tasks wake for something else than Flink's slices of one second"
    )
    assert sample["cpu_s_per_task_and_hour"] < 10, "idle tasks spin"


def test_the_wakeup_bench_counts_only_wakeups_of_a_parked_task() -> None:
    """A record that came while the task still worked does not show how long it takes to wake."""
    samples = [(0, 0, 0, 1), (0, 3000, 10_000, 2), (9000, 9500, 8000, 2), (9000, 0, 8000, 3), (0, 5000, 10_000, 4)]

    figures = wakeup.evaluate(samples, 0)

    assert (figures["p50_us"], figures["max_us"], figures["from_sent_p50_us"]) == (5.0, 7.0, 10.0)
    assert (figures["num_wakeups"], figures["num_not_parked"]) == (2, 2)
    with pytest.raises(AssertionError, match="parked for 1 of 3 records only"):
        wakeup.evaluate([samples[0], (0, 0, 0, 1), (0, 0, 0, 1), (0, 0, 0, 2)], 0)
    with pytest.raises(AssertionError, match="ran before the data came"):
        wakeup.evaluate([samples[0], (0, 9000, 8000, 2)], 0)
