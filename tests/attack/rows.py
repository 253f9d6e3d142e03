"""The table of a run: one row per attack, kept in a file so that several workers can write it.

Units:  seconds; memory in MiB.
"""

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROWS_FILE: Final = "FLOWLET_ATTACK_ROWS"


@dataclass
class Row:
    attack: str
    outcome: str = "failed"
    bystander: str = "-"
    new_job: str = "-"
    growth: str = "-"


def write_row(row: Row) -> None:
    """Print a row, and append it to the file of this run, if there is one."""
    print(f"{row.attack} | {row.outcome} | bystander {row.bystander} | new job {row.new_job} | {row.growth}")
    name = os.environ.get(ROWS_FILE)
    if name is not None:
        with open(name, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(asdict(row)) + "\n")


def read_rows(file: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
