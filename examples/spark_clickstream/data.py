"""Makes the data of a web shop: users, clicks and purchases in Parquet files, with the flaws of real data.

Rows are out of order within a file, some come in a later file, some twice, some are broken.  In a few bursts, users
click faster than people can.  A seed always makes equal data.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START_US = 1_718_000_000_000_000  # 2024-06-10 06:13:20 UTC
DAY_US = 24 * 3600 * 1_000_000
NUM_FILES = 4
BURST_CLICKS = 14
BURST_US = 900_000
PAGES = ("home", "search", "product", "cart", "checkout", "help")
COUNTRIES = ("DE", "FR", "JP", "BR", "US", "IN", None)
_CLICK_IDS, _PURCHASE_IDS = 1_000_000_000, 2_000_000_000
_AT = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Made:
    """How many rows were made, before cleaning."""

    num_users: int
    num_clicks: int
    num_purchases: int
    num_bursts: int


def make_data(folder: Path, num_clicks: int, seed: int = 1) -> Made:
    """Write ``users``, ``clicks`` and ``purchases`` below ``folder``."""
    rng = np.random.default_rng(seed)
    num_users, num_bursts = max(20, num_clicks // 50), max(2, num_clicks // 5_000)
    _write(folder / "users", [_users(num_users)])
    clicks = _clicks(rng, num_clicks, num_users, num_bursts)
    _write(folder / "clicks", _files(rng, clicks))
    purchases = _purchases(rng, num_clicks // 10, num_users)
    _write(folder / "purchases", _files(rng, purchases))
    return Made(num_users, clicks.num_rows, purchases.num_rows, num_bursts)


def _users(num_users: int) -> pa.Table:
    """Make users: one in seven has no country, one in a hundred appears twice."""
    ids = np.arange(1, num_users + 1)
    ids = np.concatenate([ids, ids[:: max(1, num_users // (1 + num_users // 100))]])
    countries = [COUNTRIES[(7 * int(each)) % len(COUNTRIES)] for each in ids]
    return pa.table({"user": pa.array(ids, pa.int64()), "country": pa.array(countries, pa.string())})


def _clicks(rng: np.random.Generator, num_clicks: int, num_users: int, num_bursts: int) -> pa.Table:
    at = START_US + rng.integers(0, DAY_US, num_clicks)
    users = _some_users(rng, num_clicks, num_users)
    burst_users = rng.integers(1, num_users + 1, num_bursts)
    burst_starts = START_US + rng.integers(0, DAY_US - BURST_US, num_bursts)
    burst_at = (burst_starts[:, None] + rng.integers(0, BURST_US, (num_bursts, BURST_CLICKS))).ravel()
    at = np.concatenate([at, burst_at])
    users = np.concatenate([users, np.repeat(burst_users, BURST_CLICKS)])
    pages = pa.array(PAGES).take(pa.array(rng.integers(0, len(PAGES), len(at))))
    table = pa.table({"event": _ids(_CLICK_IDS, len(at)), "user": users, "at": pa.array(at, _AT), "page": pages})
    return _spoil(rng, table)


def _purchases(rng: np.random.Generator, num_purchases: int, num_users: int) -> pa.Table:
    """Make purchases: one in a hundred has an impossible amount."""
    at = START_US + rng.integers(0, DAY_US, num_purchases)
    cents = rng.integers(99, 50_000, num_purchases)
    cents[rng.random(num_purchases) < 0.01] *= -1
    users = _some_users(rng, num_purchases, num_users)
    events = _ids(_PURCHASE_IDS, num_purchases)
    return _spoil(
        rng, pa.table({"event": events, "user": users, "at": pa.array(at, _AT), "cents": pa.array(cents, pa.int64())})
    )


def _some_users(rng: np.random.Generator, how_many: int, num_users: int) -> Any:
    """Choose users: a few do much, most do little; about one in a hundred is unknown."""
    return (rng.random(how_many) ** 2 * num_users * 1.02).astype(np.int64) + 1


def _ids(first: int, how_many: int) -> pa.Array:
    return pa.array(np.arange(first, first + how_many), pa.int64())


def _spoil(rng: np.random.Generator, table: pa.Table) -> pa.Table:
    """Add rows without a user or a time, rows from another century, and duplicates."""
    how_many = table.num_rows
    no_user, no_time, other_time, twice = (rng.random(how_many) < share for share in (0.005, 0.005, 0.002, 0.01))
    users = pa.array(table.column("user").to_numpy(), pa.int64(), mask=no_user)
    micros = table.column("at").cast(pa.timestamp("us")).to_numpy().astype(np.int64)
    micros = np.where(other_time, micros - 100 * 365 * DAY_US, micros)
    at = pa.array(micros, pa.int64(), mask=no_time).cast(pa.timestamp("us")).cast(_AT)
    spoiled = table.set_column(table.schema.get_field_index("user"), "user", users).set_column(
        table.schema.get_field_index("at"), "at", at
    )
    return pa.concat_tables([spoiled, spoiled.filter(pa.array(twice))])


def _files(rng: np.random.Generator, table: pa.Table) -> list[pa.Table]:
    """Split the rows into files by time; within a file they are shuffled, and one row in twenty
    comes in a later file.
    """
    micros = table.column("at").cast(pa.int64()).fill_null(START_US).to_numpy()
    file = np.clip((micros - START_US) * NUM_FILES // DAY_US, 0, NUM_FILES - 1)
    late = rng.random(table.num_rows) < 0.05
    file = np.where(late, np.minimum(file + 1, NUM_FILES - 1), file)
    return [table.take(pa.array(rng.permutation(np.flatnonzero(file == number)))) for number in range(NUM_FILES)]


def _write(folder: Path, tables: list[pa.Table]) -> None:
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{folder.name}-{number}.parquet")
