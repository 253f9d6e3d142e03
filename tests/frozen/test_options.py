"""The options of programs, ``config.yaml`` and processes, and the variables of the environment that the product reads.

``docs/options.md`` has the options, and ``tests/flowlet/common/options/test_known_options.py`` sees to it that the page
says what the code does.  This list is read from the page, and each name of it is then given to an environment.

Items:  ``NAME`` with the values that it takes, its default and, of an older name, the newer one; ``WHOSE NAME`` of
        options of ``config.yaml`` that concern a process; ``$NAME`` of variables.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from flowlet.common import Configuration, IgnoredOptionWarning
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError
from tests.frozen.frozen_list import FrozenList
from tests.syntax_trees import nodes_of

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGE: Final = ROOT / "docs" / "options.md"
_VARIABLE: Final = re.compile(r"FLOWLET_[A-Z_]+")
_IGNORED: Final = "without effect"
_PROCESSES: Final = ("JobManager", "TaskManager")


def options() -> Iterator[str]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            names, allowed, default = _names_in(cells[0]), cells[1].replace("`", ""), cells[2]
            for name in names:
                older = "" if name == names[0] else f"; older name of {names[0]}"
                yield f"{name}  {allowed}; default {default or 'none'}{older}"
        elif line.startswith("`"):
            yield from (f"{name}  {_IGNORED}" for name in _names_in(cells[0]))
        elif cells[0] in _PROCESSES:
            yield f"{cells[0]} {cells[1].strip('`')}  of a process"
    yield from (f"${name}  variable" for name in _variables())


def _names_in(cell: str) -> list[str]:
    return [name.strip(" `") for name in cell.split(",")]


def _variables() -> set[str]:
    """Return the environment variables that the product's text names."""
    paths = [path for top in ("flowlet", "netstack") for path in (ROOT / top).rglob("*.py")]
    texts = [text for path in paths if "FLOWLET_" in (text := path.read_text(encoding="utf-8"))]
    constants = [node.value for text in texts for node in nodes_of(text) if isinstance(node, ast.Constant)]
    return {each for each in constants if isinstance(each, str) and _VARIABLE.fullmatch(each)}


OPTIONS: Final = FrozenList(
    "options",
    "Options and variables",
    options,
    "An option may get another name, if it keeps the former one as an older name.",
)


def test_options_stay_as_the_page_has_them() -> None:
    OPTIONS.check()


def _stored(*processes: str) -> list[str]:
    names = [(key.rpartition(" "), value) for key, value in OPTIONS.read().items() if not key.startswith("$")]
    return [name for (whose, _, name), _ in names if whose in processes]


def _refusal(name: str, value: str) -> str:
    """Return an environment's objection to the value of an option; empty: the environment takes it."""
    environment = StreamExecutionEnvironment.get_execution_environment()
    try:
        environment.configure(Configuration.from_dict({name: value}))
    except ConfigError as error:
        return str(error)
    return ""


def test_each_option_is_known_to_an_environment() -> None:
    """An environment takes a value or calls the value wrong, never the name; an option without an effect gives a
    warning.
    """
    complaints = []
    for name, meaning in OPTIONS.read().items():
        if name not in _stored(""):
            continue
        with warnings.catch_warnings(record=True, category=IgnoredOptionWarning, action="always") as warned:
            refused = _refusal(name.replace("*", "anything"), "?")
        if meaning == _IGNORED and (refused or len(warned) != 1):
            complaints.append(f"{name} gives no warning: {refused}")
        if re.search("is not known|exists in Flink|is not read here", refused):
            complaints.append(refused)

    assert complaints == []


def test_a_name_that_does_not_exist_is_refused() -> None:
    """An unknown name is refused, so the test above can fail."""
    assert "is not known" in _refusal("flowlet.there-is-none", "?")


def test_a_config_file_may_have_all_options_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: Sequence[str] = _stored(*_PROCESSES)
    monkeypatch.setenv("FLOWLET_CONF_DIR", str(tmp_path))
    (tmp_path / "config.yaml").write_text("".join(f"{name}: 1\n" for name in names), encoding="utf-8")

    StreamExecutionEnvironment.get_execution_environment()

    assert len(names) > 10
    (tmp_path / "config.yaml").write_text("taskmanager.number-of-slots: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'taskmanager\.number-of-slots'"):
        StreamExecutionEnvironment.get_execution_environment()
