"""The database sink beside a bare ``executemany`` of equal rows in equal transactions.

Side:  any.
Rows:  an integer and a text of some 20 characters, from a list in memory; one subtask, in this process.
Forms: ``at least once``: batches of 5000 rows, a transaction each.  ``exactly once``: checkpoints every second, a
       transaction each.  The time is that of the job, without the start of its cluster.  ``bare``: a loop over batches
       of 5000 rows of the list, with the driver that the sink uses.
Databases: SQLite in a temporary folder, in its default journal mode; PostgreSQL with ``--postgresql URL``, whose table
       ``flowlet_bench`` is replaced.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.jobs.checked import WrongOutputError
from bench.jobs.pipeline import Run
from bench.load import ForeignLoad
from bench.report import Result
from bench.rounds import Contender, compare
from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.connectors.database.sink import driver_of
from flowlet.connectors.database.statement import DatabaseStatement
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExactlyOnceSink, JdbcSink

NUM_ROWS: Final = 500_000
QUICK_ROWS: Final = 2_000
BATCH: Final = 5_000
TABLE: Final = "flowlet_bench"
ROW: Final = Types.TUPLE([Types.LONG(), Types.STRING()])
INSERT: Final = f"INSERT INTO {TABLE} (id, name) VALUES (?, ?)"


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench database-sink", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=NUM_ROWS)
    parser.add_argument("--postgresql", metavar="URL", help="a database in which a table can be made")
    return vars(parser.parse_args(arguments))


def run(num_runs: int, *, quick: bool = False, rows: int = NUM_ROWS, postgresql: str | None = None) -> list[Result]:
    """Measure each database: both guarantees in turns with the bare driver."""
    records = [(number, f"the name of row {number}") for number in range(QUICK_ROWS if quick else rows)]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as folder:
        urls = {"SQLite": f"sqlite://{folder}/bench.db"} | ({"PostgreSQL": postgresql} if postgresql else {})
        for name, url in urls.items():
            connection = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build()
            one, other = JdbcSink.sink(INSERT, ROW, connection), JdbcSink.exactly_once_sink(INSERT, ROW, connection)
            forms: list[tuple[str, Callable[[], float]]] = [
                ("at least once", partial(_write_with, one, records, None)),
                ("exactly once", partial(_write_with, other, records, Path(folder))),
                ("bare", partial(_write_bare, one.statement, records)),
            ]
            contenders = [
                Contender(
                    f"{name} {form}", partial(_measured, one.statement, len(records), write), is_peer=form == "bare"
                )
                for form, write in forms
            ]
            results += compare(contenders, num_runs, "rows/s")
    return results


def _measured(statement: DatabaseStatement, num_rows: int, write: Callable[[], float]) -> Run:
    connection = driver_of(statement).connect()
    with closing(connection):
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        connection.execute(f"CREATE TABLE {TABLE} (id BIGINT, name TEXT)")
        with ForeignLoad() as load:
            seconds = write()
        ((count,),) = connection.execute(f"SELECT count(*) FROM {TABLE}").fetchall()
    if count != num_rows:
        raise WrongOutputError(f"the table has {count} rows, {num_rows} were written")
    return Run(num_rows / seconds, seconds, load.cores)


def _write_with(sink: JdbcSink | JdbcExactlyOnceSink, records: list[tuple[int, str]], folder: Path | None) -> float:
    configuration = Configuration()
    if folder is not None:
        configuration.set_string("execution.checkpointing.dir", str(folder / "checkpoints"))
        configuration.set_string("execution.checkpointing.interval", "1 s")
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(1)
    env.from_collection(records, ROW).sink_to(sink)
    return env.execute("bench").get_net_runtime() / 1000


def _write_bare(statement: DatabaseStatement, records: list[tuple[int, str]]) -> float:
    start = time.perf_counter()
    driver = driver_of(statement)
    sql = statement.parsed.written(driver.style)
    with closing(driver.connect()) as connection, closing(connection.cursor()) as cursor:
        for first in range(0, len(records), BATCH):
            cursor.execute("BEGIN")
            cursor.executemany(sql, records[first : first + BATCH])
            cursor.execute("COMMIT")
    return time.perf_counter() - start
