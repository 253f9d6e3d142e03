"""The peers give what the plain loop gives for programs and queries, where they are installed."""

import itertools
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench import nexmark, programs
from bench.jobs import checked_work
from bench.jobs.work import Work
from bench.peers import (
    by_hand,
    bytewax,
    bytewax_work,
    flink_cluster,
    loop_of_calls,
    loop_work,
    nexmark_flink,
    pyflink_work,
)

WORKS = [
    *(programs.work_of(program, form, 2_000) for program in programs.PROGRAMS for form in programs.FORMS),
    *(nexmark.work_of(query, "friendly", 2_000).with_at_most(2_000) for query in nexmark.QUERIES),
]
OF_PYFLINK = [programs.work_of("two_streams", "friendly", 2_000), nexmark.work_of("q11", "friendly", 2_000)]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", loop_work.Form)
def test_the_loop_runs_in_a_process_of_its_own(form: loop_work.Form) -> None:
    run = loop_work.run_once(WORKS[0], form)

    assert run.rate == pytest.approx(2_000 / run.seconds)


@pytest.mark.parametrize("work", [work for work in WORKS if by_hand.is_there_for(work)], ids=lambda work: work.name)
def test_two_processes_by_hand_give_the_same(work: Work) -> None:
    _, _, found = by_hand.run(work)

    assert found == checked_work.expected(work)


def test_a_process_that_fails_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one would wait for its records for ever."""

    def fails_once(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
        if "process-1" in multiprocessing.current_process().name.lower():
            os._exit(3)
        return iter([(line, {}) for line in lines][:0])

    made = by_hand._PROGRAMS["json_dicts"][1]
    monkeypatch.setitem(by_hand._PROGRAMS, "json_dicts", (fails_once, made))
    monkeypatch.setattr("multiprocessing.process._process_counter", itertools.count(1))

    with pytest.raises(ChildProcessError, match="ended with 3"):
        by_hand.run(WORKS[0])


@pytest.mark.parametrize("work", [work for work in WORKS if loop_of_calls.can_call(work)], ids=lambda work: work.name)
def test_a_loop_of_calls_gives_the_same(work: Work) -> None:
    assert loop_of_calls.loop_of(work)(*[each.records() for each in work.inputs]) == checked_work.expected(work)


def test_there_is_a_loop_of_calls_for_all_but_timers_and_joins() -> None:
    missing = {work.program for work in WORKS if not loop_of_calls.can_call(work)}

    assert missing == {"two_streams_twin", "q3", "q8", "q11"}


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_bytewax_gives_the_same(work: Work) -> None:
    """Bytewax gives the results of the loop, in two processes that exchange records."""
    if bytewax.why_missing() is not None:
        pytest.skip("Bytewax is not installed")

    assert bytewax_work.run_once(work, 2).rate > 0


def test_pyflink_and_java_give_the_same() -> None:
    """The very file that runs in flowlet runs in PyFlink."""
    if flink_cluster.why_missing() is not None:
        pytest.skip("Apache Flink is not installed")
    with ExitStack() as stack:
        cluster = pyflink_work.start_cluster(stack)

        rates = [pyflink_work.run_once(cluster, work).rate for work in OF_PYFLINK]
        for query in nexmark_flink.QUERIES:
            (contender,) = nexmark_flink.contenders(cluster, nexmark.work_of(query, "friendly", 2_000))
            rates.append(contender.run().rate)

    assert all(rate > 0 for rate in rates)
    assert nexmark_flink.contenders(cluster, OF_PYFLINK[1]) == ()


def test_names_of_flowlet_are_answered_by_pyflink(tmp_path: Path) -> None:
    pyflink_work.write_names(tmp_path)

    modules = {str(file.relative_to(tmp_path)): file.read_text(encoding="ascii") for file in tmp_path.rglob("*.py")}
    assert modules == {
        "flowlet/__init__.py": "",
        "flowlet/common/__init__.py": "from pyflink.common import *\n",
        "flowlet/common/time.py": "from pyflink.common.time import *\n",
        "flowlet/common/watermark_strategy.py": "from pyflink.common.watermark_strategy import *\n",
        "flowlet/datastream/__init__.py": "from pyflink.datastream import *\n",
        "flowlet/datastream/functions.py": "from pyflink.datastream.functions import *\n",
        "flowlet/datastream/state.py": "from pyflink.datastream.state import *\n",
        "flowlet/datastream/window.py": "from pyflink.datastream.window import *\n",
    }
