"""``examples/netstack_pipe.py`` as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "netstack_pipe.py"

pytestmark = pytest.mark.slow


def pipe(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, EXAMPLE, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_example_copies_a_file_through_two_processes(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    content = bytes(range(256)) * 13_000 + b"the last buffer is not full"
    source.write_bytes(content)

    done = pipe(source, copy)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"all data received: {len(content)} bytes\n"
    assert copy.read_bytes() == content


def test_the_example_stays_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 80
