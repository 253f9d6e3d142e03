"""The cluster that the attacks of one file share.

``make attack`` runs every file but ``test_samples.py``; other runs of pytest run only that one.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.attack.arena import Arena, environment_seed, is_full_run
from tests.attack.routed import ROUTES, routed_loops

SAMPLES = "test_samples.py"
GRACE_S = 5.0


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.parent == Path(__file__).parent and collection_path.name.startswith("test_"):
        return (collection_path.name == SAMPLES) is is_full_run() or None
    return None


@pytest.fixture(scope="module")
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Yield a cluster; clients and producers of this process find its secret.

    ``IS_ROUTED`` of a file: connections of TaskManagers, producers and readers can be routed.  ``settings_of`` gives
    more variables of the environment, by the cluster's folder.
    """
    seed, folder = environment_seed(), tmp_path_factory.mktemp("arena")
    print(f"SEED={seed}")
    environment: dict[str, str] = getattr(request.module, "settings_of", lambda _: {})(folder)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        module = "flowlet.tm"
        if getattr(request.module, "IS_ROUTED", False):
            module = "tests.attack.routed"
            environment[ROUTES] = str(folder / "routes")
            patch.setenv(ROUTES, environment[ROUTES])
            stack.enter_context(routed_loops())
        running = stack.enter_context(Arena(folder, seed, module=module, environment=environment))
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
