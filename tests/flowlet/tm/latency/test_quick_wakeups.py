"""The requests to the kernel, in a process of its own, because they cannot be taken back."""

import subprocess
import sys
from pathlib import Path

import pytest

from flowlet.tm.latency import latency_policy as quick_wakeups

_PROGRAM = """
import threading
from pathlib import Path
from flowlet.tm.latency.latency_policy import ask_for_quick_wakeups

missing = ask_for_quick_wakeups()
slacks = []

def look():
    slacks.append(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text().strip())

look()
thread = threading.Thread(target=look)
thread.start()
thread.join()
print(len([each for each in missing if each.startswith("exact")]), *slacks)
"""


@pytest.mark.skipif(not Path("/proc/self/timerslack_ns").exists(), reason="the kernel has no timer slack")
def test_this_thread_and_those_that_it_starts_have_exact_timers() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["0", "1", "1"]


def test_what_the_kernel_does_not_offer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No request fails; the process runs as it would without it."""
    monkeypatch.setattr(quick_wakeups, "_SYSCALLS", {})
    monkeypatch.setattr(quick_wakeups, "_SLACK_FILE", tmp_path / "nowhere" / "timerslack_ns")

    missing = quick_wakeups.ask_for_quick_wakeups()

    assert [each.partition(":")[0] for each in missing] == ["short time slices", "exact timers"]
