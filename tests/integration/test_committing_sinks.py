"""Jobs whose sinks commit with checkpoints: to the end, through failures and restarts.

All in this process; the ledger is outside.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import SinkContext, SinkFunction, StreamExecutionEnvironment, TwoPhaseCommitSinkFunction
from flowlet.errors import JobExecutionError, JobGraphError
from tests.flowlet.sinks.ledger_sink import LEDGERS, GlobalLedgerSink, Ledger, LedgerSink
from tests.integration import jobs

NUM_RECORDS = 2_000
NUMBERS = count()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    LEDGERS["job"] = Ledger()
    yield LEDGERS["job"]
    LEDGERS.clear()


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")


def environment(folder: Path | None, attempts: int = 0) -> StreamExecutionEnvironment:
    options = {"restart-strategy.type": "none"}
    if attempts:
        options = {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": str(attempts),
            "restart-strategy.fixed-delay.delay": "10 ms",
        }
    if folder is not None:
        return jobs.environment(folder, options, interval_ms=50)
    return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options)).set_parallelism(2)


def write_numbers(env: StreamExecutionEnvironment) -> None:
    env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).sink_to(LedgerSink("job"))
    env.execute("numbers")


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_a_job_ends_after_its_last_commit(ledger: Ledger, has_checkpoints: bool, tmp_path: Path) -> None:
    """A job without checkpoints commits at its end."""
    write_numbers(environment(tmp_path if has_checkpoints else None))

    assert Counter(ledger.records) == Counter(range(NUM_RECORDS))


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults", [["raise"], ["raise after commit"], ["raise after commit", "raise"], ["unknown", "retry"]]
)
def test_a_commit_that_fails_restarts_the_job_and_happens_once(
    ledger: Ledger, faults: list[str], tmp_path: Path
) -> None:
    """A commit that fails restarts the job, also at the final checkpoint: its subtasks had finished and come back to
    commit.
    """
    ledger.faults = faults

    write_numbers(environment(tmp_path, attempts=3))

    assert ledger.faults == []
    assert Counter(ledger.records) == Counter(range(NUM_RECORDS))


def test_a_job_that_fails_commits_nothing_of_what_no_checkpoint_holds(ledger: Ledger, tmp_path: Path) -> None:
    ledger.faults = ["flush"]

    with pytest.raises(JobExecutionError, match="cannot flush"):
        write_numbers(environment(tmp_path))

    assert len(ledger.records) < NUM_RECORDS


def test_a_committing_sink_refuses_a_job_without_a_final_checkpoint(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.configure(Configuration.from_dict({"execution.checkpointing.checkpoints-after-tasks-finish": "false"}))

    with pytest.raises(JobGraphError, match="checkpoints-after-tasks-finish to true"):
        write_numbers(env)


class IntoLedger(SinkFunction):
    """Writes each record at once."""

    def invoke(self, value: int, context: SinkContext) -> None:
        LEDGERS["job"].calls.append(f"{value}")


class InTransactions(TwoPhaseCommitSinkFunction):
    """A transaction is a list of records, which becomes a batch of the ledger."""

    def begin_transaction(self) -> list[Any]:
        return [next(NUMBERS), []]

    def invoke_in_transaction(self, transaction: list[Any], value: int, context: SinkContext) -> None:
        transaction[1].append(value)

    def pre_commit(self, transaction: list[Any]) -> None:
        pass

    def commit(self, transaction: list[Any]) -> None:
        if LEDGERS["job"].take("raise"):
            raise ValueError("cannot commit")
        LEDGERS["job"].committed[transaction[0], 0, 0] = transaction[1]

    def abort(self, transaction: list[Any]) -> None:
        pass


def test_add_sink_calls_a_function_with_every_record(ledger: Ledger) -> None:
    env = environment(None)
    stream = env.from_collection([1, 2, 3], Types.LONG())
    stream.add_sink(IntoLedger())
    stream.add_sink(_append)

    env.execute("functions")

    assert sorted(ledger.calls) == ["1", "1", "2", "2", "3", "3"]


def _append(value: int) -> None:
    LEDGERS["job"].calls.append(f"{value}")


@pytest.mark.slow
@pytest.mark.parametrize("faults", [[], ["raise"], ["raise", "raise"]])
def test_a_two_phase_commit_function_counts_each_record_once(ledger: Ledger, faults: list[str], tmp_path: Path) -> None:
    ledger.faults = faults
    env = environment(tmp_path, attempts=3)
    env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).add_sink(InTransactions())

    env.execute("transactions")

    assert ledger.faults == []
    assert Counter(ledger.records) == Counter(range(NUM_RECORDS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("has_checkpoints", "faults"),
    [
        (False, []),
        (True, []),
        (True, ["raise"]),
        (True, ["global raise"]),
        (True, ["global raise after commit"]),
        (True, ["global raise", "raise after commit", "global raise"]),
    ],
)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_global_committer_gets_each_committable_of_all_subtasks_once(
    ledger: Ledger, faults: list[str], has_checkpoints: bool, parallelism: int, tmp_path: Path
) -> None:
    """The global committer gets each committable once, also those of the last checkpoint, behind the end of the data,
    and after a failure there.
    """
    ledger.faults = faults
    env = environment(tmp_path if has_checkpoints else None, attempts=4)
    env.set_parallelism(parallelism)
    env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).sink_to(GlobalLedgerSink("job"))

    env.execute("published")

    assert ledger.faults == []
    assert Counter(ledger.records) == Counter(range(NUM_RECORDS))
    assert Counter(number for commit in ledger.published for number in commit) == Counter(list(ledger.committed))
