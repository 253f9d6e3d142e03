"""``python -m tests.attack``: run the attacks on real clusters, and print what became of each."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.attack.rows import ROWS_FILE, read_rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="attacks whose names match, as pytest's -k")
    parser.add_argument("--workers", type=int, default=2, help="how many clusters are attacked at once")
    options, more = parser.parse_known_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        rows.touch()
        environment = {"FLOWLET_ATTACK": "1", "FLOWLET_ATTACK_SEED": str(options.seed), ROWS_FILE: str(rows)}
        environment |= {"PYTHONASYNCIODEBUG": "", "NETSTACK_DEBUG": "0"}  # as users run it
        command = [sys.executable, "-m", "pytest", "-q", "tests/attack", "-o", "faulthandler_timeout=300"]
        command += (
            ["-n", str(options.workers), "--dist", "loadfile", "--tb=short"] if options.workers else ["--tb=short"]
        )
        command += (["-k", options.only] if options.only else []) + more
        code = subprocess.run(command, env=os.environ | environment, check=False).returncode
        table = Table("attack", "outcome", "bystander", "new job", "grown by at most", title=f"SEED={options.seed}")
        for row in read_rows(rows):
            table.add_row(row.attack, row.outcome, row.bystander, row.new_job, row.growth)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(
        f"{table.row_count} attacks in {time.perf_counter() - started:.0f} s, SEED={options.seed}; pytest ended with "
        f"{code}"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
