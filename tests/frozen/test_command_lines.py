"""The commands of the command line and of the processes, with their arguments and options.

A process of its own runs ``python -m flowlet``, ``python -m flowlet.jm`` and ``python -m flowlet.tm`` as far as the
call of typer, which then tells what it would parse.

Items:  ``PROGRAM COMMAND --option`` with whether it takes a value, more than one, and must be there, and its default,
        if that is plain.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.frozen.frozen_list import FrozenList

_TIMEOUT_S: Final = 60.0
_PROBE: Final = """
import json, runpy, sys
import typer
from typer.main import get_command

class Found(BaseException):
    pass

def tell(app, *_arguments, **_options):
    raise Found(get_command(app))

def described(program, command):
    yield program, "", ""
    for each in command.params:
        if each.param_type_name == "argument":
            yield program, each.name.upper(), " ".join(["argument", *["required"] * each.required, *["repeated"] * (each.nargs == -1)])
            continue
        default = getattr(each.default, "value", each.default)
        default = default if isinstance(default, (str, int, float)) and not each.is_flag else None
        words = ["flag" if each.is_flag else "value", *["repeated"] * each.multiple, *["required"] * each.required]
        words += [] if default is None else [f"default {default!r}"]
        for name in [*each.opts, *each.secondary_opts]:
            yield program, name, " ".join(words)
    for name, inner in getattr(command, "commands", {}).items():
        yield from described(f"{program} {name}", inner)

typer.Typer.__call__ = tell
items = []
for module in ("flowlet", "flowlet.jm", "flowlet.tm"):
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__")
    except Found as found:
        items += described(f"python -m {module}", found.args[0])
print(json.dumps(items))
"""  # noqa: E501


def command_lines() -> Iterator[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    for program, name, meaning in json.loads(done.stdout):
        yield f"{program} {name}  {meaning}" if name else f"{program}  command"


COMMAND_LINES: Final = FrozenList(
    "command_lines",
    "Commands, their arguments and options",
    command_lines,
    "Scripts and service files have it in them.",
)


@pytest.mark.slow
def test_commands_and_their_options_stay() -> None:
    COMMAND_LINES.check()
