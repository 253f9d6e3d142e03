"""The output of every case: one JSON object per figure, with where it comes from.

Side:  any.
"""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("flowlet", "uvloop", "numpy", "pyarrow", "mmh3", "msgspec", "aiohttp", "cloudpickle")


@dataclass(frozen=True)
class Result:
    """One figure of ``case``, ours or of a peer; ``value`` is the median of ``runs``.

    ``foreign_cores`` says for each run how many cores other programs used meanwhile (one entry: for all of them), and
    ``calibration`` how many words per second a plain loop counted on this machine before and after (``bench/load.py``).
    ``versions`` has the versions of measured packages, such as a peer, that are not on our own data path.
    """

    name: str
    unit: str
    runs: Sequence[float]
    details: dict[str, Any] = field(default_factory=dict)
    foreign_cores: Sequence[float] = ()
    calibration: Sequence[float] = ()
    versions: dict[str, str] = field(default_factory=dict)
    is_peer: bool = False
    case: str = ""

    def to_json(self) -> str:
        """Return the result as one line."""
        figures = {
            "name": self.name,
            "case": self.case,
            "is_peer": self.is_peer,
            "value": statistics.median(self.runs),
            "unit": self.unit,
            "runs": list(self.runs),
            "median": statistics.median(self.runs),
            "min": min(self.runs),
            "max": max(self.runs),
            "foreign_cores": list(self.foreign_cores),
            "calibration": list(self.calibration),
        }
        origin = {
            "machine": machine(),
            "versions": versions() | self.versions,
            "git_revision": git_revision(),
            "details": self.details,
        }
        return json.dumps(figures | origin)


def machine() -> dict[str, Any]:
    """Return processor, cores, memory and kernel."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = [line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load_1min": os.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on the data path."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def git_revision() -> str:
    """Return the commit, with ``-dirty`` if the work tree differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


@dataclass(frozen=True)
class ProcessUse:
    """CPU and memory of one process at one moment."""

    cpu_s: float
    rss_bytes: int

    @classmethod
    def of(cls, pid: int) -> "ProcessUse":
        """Read /proc; works for any live process of this user."""
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = int(stat[11]) + int(stat[12])  # utime, stime: fields 14 and 15 of proc(5)
        resident_pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
        return cls(ticks / os.sysconf("SC_CLK_TCK"), resident_pages * os.sysconf("SC_PAGE_SIZE"))

    def as_dict(self) -> dict[str, float]:
        """Return them for the details of a result."""
        return asdict(self)
