"""The benchmark of the database sink; its figures mean nothing here, but its counts in the table are checked."""

import pytest

from bench import database_sink


@pytest.mark.slow
def test_both_guarantees_write_every_row() -> None:
    results = database_sink.run(1, quick=True)

    assert {result.name for result in results} >= {"SQLite at least once", "SQLite exactly once", "SQLite bare"}
