"""The paths of the JobManager's REST interface, as the router of a running one lists them.

Items:  ``METHOD /path/{name}``; ``*`` answers all other methods of a path, or all other paths, with an error.
"""

from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import pytest
from aiohttp import web

from flowlet.testing import MiniCluster
from tests.frozen.frozen_list import FrozenList
from tests.frozen.signed_get import signed_get


def rest_paths() -> Iterator[str]:
    """The items."""
    for resource in _router_of_a_running_job_manager().resources():
        for route in resource:
            yield f"{route.method} {resource.canonical}"


def _router_of_a_running_job_manager() -> web.UrlDispatcher:
    """The web server starts at the first signed request: this sends one."""
    runners: list[web.AppRunner] = []
    make = web.AppRunner.__init__

    def note(runner: Any, *arguments: Any, **options: Any) -> None:
        runners.append(runner)
        make(runner, *arguments, **options)

    with mock.patch.object(web.AppRunner, "__init__", note), MiniCluster(1) as cluster:
        target = cluster.target
        assert target.secret is not None, "a MiniCluster makes one"
        signed_get(target.host, target.port, target.secret, "/overview")
        return runners[0].app.router


REST_PATHS: Final = FrozenList(
    "rest_paths", "Paths of the REST interface", rest_paths, "Clients and producers of the last version call it."
)


@pytest.mark.slow
def test_the_paths_of_the_rest_interface_stay() -> None:
    REST_PATHS.check()
