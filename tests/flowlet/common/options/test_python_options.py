"""Files that a program ships, as options and as methods of its environment."""

from collections.abc import Callable

import pytest

from flowlet.common import Configuration
from flowlet.common.option import settings_of
from flowlet.common.options.python_options import ArchivePath, CachedPath, DependencySettings
from flowlet.errors import ConfigError
from tests.flowlet.stream_graphs import graph_of, unstarted


def test_what_methods_add_reaches_the_graph() -> None:
    environment = unstarted()
    environment.from_collection([1]).print()

    environment.add_python_file("a.py")
    environment.add_python_file("folder")
    environment.set_python_requirements("req.txt", "packages")
    environment.add_python_archive("data.zip")
    environment.add_python_archive("more.tar.gz", "more")
    environment.set_python_executable("python3")
    environment.register_cached_file("model.bin", "model")
    environment.register_cached_file("tool", "tool", executable=True)

    assert graph_of(environment.execute).settings.dependencies == DependencySettings(
        python_files=("folder", "a.py"),
        requirements="req.txt",
        packages="packages",
        archives=(ArchivePath("data.zip", "data.zip"), ArchivePath("more.tar.gz", "more")),
        cached=(CachedPath("model", "model.bin"), CachedPath("tool", "tool", is_executable=True)),
        executable="python3",
    )


def test_nothing_is_shipped_but_modules_beside_the_program_unless_that_is_off() -> None:
    assert settings_of(DependencySettings, Configuration()) == DependencySettings()
    assert not settings_of(DependencySettings, Configuration.from_dict({"flowlet.ship-modules": "false"})).ships_modules


@pytest.mark.parametrize(
    "text", ["name:a", "path:b", "name:a,path:b,executable:maybe", "name:a,path:b,more:c", "name:a,name:b,path:c", "a"]
)
def test_cached_files_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"option 'pipeline.cached-files' is .*, which is not of the form"):
        settings_of(DependencySettings, Configuration.from_dict({"pipeline.cached-files": text}))


def test_arguments_that_cannot_be_told_apart_in_an_option_are_refused() -> None:
    environment = unstarted()
    environment.register_cached_file("a", "name")
    refused: list[tuple[Callable[[], None], str]] = [
        (
            lambda: environment.add_python_file("a,b.py"),
            r"add_python_file\(\) got 'a,b.py': a path or name with ',' cannot be shipped",
        ),
        (lambda: environment.add_python_archive("a#b.zip"), r"add_python_archive\(\) got 'a#b.zip'"),
        (
            lambda: environment.set_python_requirements(""),
            r"set_python_requirements\(\) needs a path as a text that is not empty, got ''",
        ),
        (
            lambda: environment.set_python_executable(None),  # type: ignore[arg-type]
            r"set_python_executable\(\) needs a path as a text that is not empty, got None",
        ),
        (
            lambda: environment.register_cached_file("b", "name"),
            r"register_cached_file\(\) got the name 'name' twice",
        ),
    ]

    for call, reason in refused:
        with pytest.raises(ConfigError, match=reason):
            call()
