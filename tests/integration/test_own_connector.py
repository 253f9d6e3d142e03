"""The connector of ``docs/write-your-own-connector.md``: each row once, although a TaskManager is killed."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Types, WatermarkStrategy
from tests.integration.killing_sink import PACE_S, deaths, die, environment, row_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_servers")]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "write-your-own-connector.md"
NUM_ROWS = 4_000
MAX_LINES = 60


def example() -> str:
    return PAGE.read_text().partition("```python\n")[2].partition("```")[0]


class DiesOnce:
    """Dies at one row, in the first process that has it."""

    def __init__(self, evidence: Path) -> None:
        self._evidence = evidence

    def __call__(self, row: tuple[int, str]) -> tuple[int, str]:
        if row[0] % 500 == 0:
            time.sleep(PACE_S)  # a barrier passes
        if row[0] == NUM_ROWS - 1 and not (self._evidence / "deaths.txt").exists():
            die(self._evidence, "killed")
        return row


def test_the_example_fits_on_a_page() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= MAX_LINES


def test_each_row_is_there_once_although_a_taskmanager_is_killed(tmp_path: Path) -> None:
    (tmp_path / "tables.py").write_text(example())
    path = str(tmp_path / "shop.db")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER, name TEXT)")
        database.execute("CREATE TABLE copies (id INTEGER, name TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", map(row_of, range(NUM_ROWS)))
    tables: dict[str, Any] = {"__name__": "__main__"}  # as in a program that is one file
    exec(compile(example(), str(tmp_path / "tables.py"), "exec"), tables)  # the text of our own page

    env = environment(tmp_path, parallelism=2)
    source = tables["TableSource"](path, "orders", rows_per_split=300)
    row = Types.TUPLE([Types.LONG(), Types.STRING()])
    orders = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders", row)
    copies = orders.rebalance().map(DiesOnce(tmp_path), output_type=row)
    copies.sink_to(tables["TableSink"](path, "INSERT INTO copies VALUES (?, ?)"))
    env.execute("copies")

    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT id, name FROM copies ORDER BY id").fetchall()
    assert deaths(tmp_path) == ["killed"]
    assert found == list(map(row_of, range(NUM_ROWS)))
