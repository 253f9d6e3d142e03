"""The cluster that the attacks of one file share.

``make attack`` runs every file but ``test_samples.py``; other runs of pytest run only that one.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.attack.arena import Arena, environment_seed, is_full_run
from tests.attack.known import known_fault

SAMPLES = "test_samples.py"
GRACE_S = 5.0


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.parent == Path(__file__).parent and collection_path.name.startswith("test_"):
        return (collection_path.name == SAMPLES) is is_full_run() or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and (reason := known_fault(item.nodeid)) is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=False))


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Yield a cluster; clients and producers of this process find its secret."""
    seed = environment_seed()
    print(f"SEED={seed}")
    with Arena(tmp_path_factory.mktemp("arena"), seed) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWLET_SECRET_FILE", str(running.secret_file))
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(arena: Arena) -> Iterator[None]:
    """Replace the check of all tests: the cluster may have other processes now, but no thread and no other child may
    stay.
    """
    threads = set(threading.enumerate())
    before = {each.pid for each in psutil.Process().children()}  # Spark's, for example, in a run of all tests

    yield

    deadline = time.monotonic() + GRACE_S
    while (left := set(threading.enumerate()) - threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"threads left behind: {sorted(thread.name for thread in left)}"
    known = before | {each.pid for each in arena.processes}
    others = [each for each in psutil.Process().children() if each.pid not in known and is_a_stranger(each)]
    for each in others:
        each.kill()
        each.wait(GRACE_S)
    assert not others, f"processes left behind (killed now): {others}"


def is_a_stranger(child: psutil.Process) -> bool:
    """Whether it runs, and is no worker of pytest's."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE and "execnet" not in " ".join(child.cmdline())
    except psutil.Error:
        return False
