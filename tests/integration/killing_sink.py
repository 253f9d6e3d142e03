"""A database sink whose TaskManager is killed by SIGKILL at a moment that the test names, and the job around it.

Side: any.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.connectors.database.statement import DatabaseStatement
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors.base import SinkWriter, WriterInitContext
from flowlet.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExactlyOnceSink, JdbcSink
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadTarget
from tests.integration import jobs
from tests.integration.jobs import RESTARTING

NUM_RECORDS: Final = 4_000
PACE_S: Final = 0.05  # of 500 records: barriers pass between
ROW: Final = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])


def die(evidence: Path, moment: str) -> None:
    """Leave a note, and be killed."""
    with open(evidence / "deaths.txt", "a") as notes:
        notes.write(f"{moment}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def deaths(evidence: Path) -> list[str]:
    """The notes of all processes that were killed, in order."""
    return (evidence / "deaths.txt").read_text().split()


class KillingTarget(WriteAheadTarget):
    """Passes everything on, but for the moment of death."""

    def __init__(self, target: WriteAheadTarget, moment: str | None, evidence: Path) -> None:
        self._target = target
        self._moment = moment
        self._evidence = evidence

    def committed(self, writer: str) -> int:
        return self._target.committed(writer)

    def commit(self, writer: str, number: int, rows: Sequence[Any]) -> None:
        if self._moment == "before":
            die(self._evidence, "before")
        self._target.commit(writer, number, rows)
        if self._moment == "after":
            die(self._evidence, "after")

    def close(self) -> None:
        self._target.close()


class KillingSink(JdbcExactlyOnceSink):
    """Subtask 0 dies at its first commit of the attempts that have a moment."""

    def __init__(self, statement: DatabaseStatement, evidence: Path, moments: Sequence[str]) -> None:
        super().__init__(statement)
        self._evidence = evidence
        self._moments = tuple(moments)

    def create_target(self, context: WriterInitContext) -> WriteAheadTarget:
        attempt = context.get_attempt_number()
        is_chosen = context.get_index_of_this_subtask() == 0 and attempt < len(self._moments)
        return KillingTarget(
            super().create_target(context), self._moments[attempt] if is_chosen else None, self._evidence
        )


class KillOnce(JdbcSink):
    """Writes at least once; subtask 0 of the first attempt dies at its first flush, whose rows are in the database
    then, and in no checkpoint.
    """

    def __init__(self, statement: DatabaseStatement, evidence: Path) -> None:
        super().__init__(statement)
        self._evidence = evidence

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        writer = super().create_writer(context)
        if context.get_attempt_number() == 0 and context.get_index_of_this_subtask() == 0:
            flush = writer.flush

            def flush_and_die(*, end_of_input: bool) -> None:
                flush(end_of_input=end_of_input)
                die(self._evidence, "flushed")

            writer.flush = flush_and_die  # type: ignore[method-assign]  # one object, of this test
        return writer


def sink(url: str, evidence: Path, moments: Sequence[str] = ()) -> JdbcExactlyOnceSink:
    """Return a sink into the table t, which has no key: a row that comes twice is there twice."""
    connection = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build()
    plain = JdbcSink.exactly_once_sink("INSERT INTO t (id, name) VALUES (?, ?)", ROW, connection)
    return KillingSink(plain.statement, evidence, moments)


def expected_rows() -> list[tuple[int, str]]:
    return [row_of(number) for number in range(NUM_RECORDS)]


def row_of(number: int) -> tuple[int, str]:
    return number, f"name {number}"


def paced_row(number: int) -> tuple[int, str]:
    if number % 500 == 0:
        time.sleep(PACE_S)
    return row_of(number)


def environment(folder: Path, *, attempts: int = 5, parallelism: int = 2) -> StreamExecutionEnvironment:
    restarts = {**RESTARTING, "restart-strategy.fixed-delay.attempts": str(attempts)}
    options = {
        "execution.checkpointing.externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
        **(restarts if attempts else {"restart-strategy.type": "none"}),
    }
    return jobs.environment(folder / "checkpoints", options, parallelism=parallelism)


def recovery_from(path: str) -> Configuration:
    """Return the options to go on from a retained checkpoint."""
    return Configuration.from_dict({"execution.state-recovery.path": path})


def numbers_into(env: StreamExecutionEnvironment, written: JdbcSink | JdbcExactlyOnceSink) -> None:
    """The program: ids keep, because another job may go on from its checkpoint."""
    numbers = env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).uid("numbers")
    rows = numbers.map(paced_row, output_type=Types.TUPLE([Types.LONG(), Types.STRING()])).uid("rows")
    rows.rebalance().add_sink(written).uid("database")
