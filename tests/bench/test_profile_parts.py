"""Samples are put down to the part that they belong to."""

import pytest

from bench.jobs.pipeline import Run
from bench.profile_parts import BENCH, UNKNOWN, USER, ns_per_record, part_of

TASK = "run (/home/me/src/flowlet/mailbox/mailbox_processor.py:166)"


@pytest.mark.parametrize(
    ("innermost", "part"),
    [
        (["Spending.process_element (/src/bench/jobs/program_streams.py:62)"], USER),
        (["parse_hit (/src/bench/jobs/program_records.py:40)", "match (/usr/lib/python3.11/re/__init__.py:166)"], USER),
        (["copy_values (/src/flowlet/operators/copying.py:52)", "deepcopy (/usr/lib/python3.11/copy.py:146)"], "copy"),
        (["dumps (/venv/lib/python3.11/site-packages/cloudpickle/cloudpickle.py:1544)"], "pickle"),
        (["run (/src/flowlet/chain/<generated 1>.py:3)"], "flowlet: generated loops"),
        (["values (/src/flowlet/records.py:64)"], "flowlet: records"),
        (["encode (/src/flowlet/serde/column_writer.py:85)"], "flowlet: serde"),
        (["send (/src/netstack/transport/network_channel.py:8)"], "netstack"),
        (["in_chunks (/src/bench/jobs/checked_work.py:45)"], BENCH),
        (["select (/usr/lib/python3.11/selectors.py:9)"], "flowlet: mailbox"),
    ],
)
def test_a_sample_belongs_to_the_innermost_frame_that_has_a_part(innermost: list[str], part: str) -> None:
    assert part_of([TASK, *innermost]) == part


def test_a_sample_without_such_a_frame_is_told_as_that() -> None:
    assert part_of(["wait (/usr/lib/python3.11/threading.py:320)"]) == UNKNOWN


def test_parts_share_the_cpu_of_the_run_without_what_came_before_the_clock() -> None:
    user = f"{TASK};parse (/src/bench/jobs/program_records.py:40)"
    made = f"{TASK};create_reader (/src/bench/jobs/checked_work.py:40);event_line (/src/bench/jobs/made_lines.py:40)"
    run = Run(1.0, 1.0, 0.0, {"cpu_s_per_tm": [1.5, 0.5]})

    parts = ns_per_record([f"{user} 6", f"{TASK} 2", f"{made} 2"], run, num_records=1_000_000)

    assert parts == {USER: pytest.approx(1200), "flowlet: mailbox": pytest.approx(400)}
