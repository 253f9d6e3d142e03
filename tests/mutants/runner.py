"""Runs mutants, a few at a time, each in a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from tests.mutants.patching import ROOT, Mutant
from tests.mutants.registry import MUTANTS

TIMEOUT_S = 120.0
_TESTS_FAILED = 1  # pytest's exit statuses
_TESTS_PASSED = 0


class Verdict(Enum):
    KILLED = "killed"
    HANGS = "killed: it hangs"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN: the test could not be run"


@dataclass(frozen=True, slots=True)
class MutantResult:
    mutant: Mutant
    verdict: Verdict
    seconds: float
    output: str

    @property
    def is_killed(self) -> bool:
        """Whether the named test noticed."""
        return self.verdict in (Verdict.KILLED, Verdict.HANGS)


def run_mutant(number: int) -> MutantResult:
    mutant = MUTANTS[number]
    command = [sys.executable, "-m", "tests.mutants.one", str(number)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        return MutantResult(mutant, Verdict.HANGS, time.perf_counter() - started, str(error))
    verdicts = {_TESTS_FAILED: Verdict.KILLED, _TESTS_PASSED: Verdict.SURVIVED}
    # Other statuses (2: an error while collecting) say that the mutant cannot be imported: that is no kill.
    verdict = verdicts.get(done.returncode, Verdict.BROKEN)
    return MutantResult(mutant, verdict, time.perf_counter() - started, done.stdout[-2000:] + done.stderr[-2000:])


def run_mutants(numbers: Sequence[int], num_parallel: int) -> list[MutantResult]:
    """Run some mutants; return their results in the order of ``numbers``."""
    with ThreadPoolExecutor(num_parallel) as pool:
        return list(pool.map(run_mutant, numbers))


def run_healthy(tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the named tests without any patch: they have to pass, or their failures with one prove nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
