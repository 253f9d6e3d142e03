"""The paths of the JobManager's REST interface, as the router of a running one has them.

Items:  ``METHOD /path/{name}``; ``*`` answers all other methods of a path, or all other paths, with an error.
"""

from collections.abc import Iterable, Iterator
from typing import Final
from unittest import mock

import pytest

from flowlet.rpc.requests import SESSION_PATH, Route, Router
from flowlet.testing import MiniCluster
from tests.frozen.frozen_list import FrozenList
from tests.frozen.signed_get import PAGE, signed_get


def rest_paths() -> Iterator[str]:
    yield "* /{path}"
    for method, path in {("GET", SESSION_PATH), *_routes_of_a_running_job_manager()}:
        yield f"* {path}"
        yield f"{method} {path}"
        if method == "GET":
            yield f"HEAD {path}"


def _routes_of_a_running_job_manager() -> Iterator[tuple[str, str]]:
    """The web server starts at the first signed request: this sends one."""
    found: list[list[Route]] = []
    make = Router.__init__

    def note(router: Router, routes: Iterable[Route]) -> None:
        found.append(list(routes))
        make(router, found[-1])

    with mock.patch.object(Router, "__init__", note), MiniCluster(1) as cluster:
        before = len(found)
        signed_get(cluster, "/overview")
        assert len(found) == before + 1, "of the web server"
    return ((route.method, route.path) for route in found[-1])


REST_PATHS: Final = FrozenList(
    "rest_paths", "Paths of the REST interface", rest_paths, "Clients and producers of the last version call it."
)


@pytest.mark.slow
def test_the_paths_of_the_rest_interface_stay() -> None:
    REST_PATHS.check()


def test_each_path_stands_on_the_page_for_users() -> None:
    page = PAGE.read_text(encoding="utf-8")
    paths = [each for each in REST_PATHS.read() if not each.startswith(("*", "HEAD"))]

    assert paths
    assert [each for each in paths if f"`{each}" not in page] == []
