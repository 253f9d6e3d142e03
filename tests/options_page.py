"""Write the tables of ``docs/options.md`` from the tables of the product: ``python -m tests.options_page --write``.

Without ``--write`` it says whether the page is what they print.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from flowlet.common import job_settings
from flowlet.common.flinks_options import IGNORED, IGNORED_PREFIXES
from flowlet.common.option import Option, rows_by_field
from flowlet.common.options import client_options, known_options
from flowlet.common.options.known_options import KNOWN, SETTINGS
from flowlet.rpc.config_file import JOB_MANAGER_OPTIONS, TASK_MANAGER_OPTIONS

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "options.md"
_ENTRY: Final = re.compile(r"^    (\w+): (.*?\.)$(?=\n    \w+: |\n*\Z|\n\n)", re.MULTILINE | re.DOTALL)
_TABLE: Final = re.compile(r"^[^\n]* ?\| ?[^\n]*\n\|?---[-|]*\n(?:[^\n]*\|[^\n]*\n)+", re.MULTILINE)


def tables() -> Iterator[str]:
    yield _table(
        "| option, with its older names | value | default | what it says |\n|---|---|---|---|", map(_row, KNOWN)
    )
    yield _table("options | why\n---|---", _ignored())
    yield _table("whose | option | what it says\n---|---|---", _of_processes())


def page(text: str) -> str:
    made = tables()
    return _TABLE.sub(lambda _: next(made), text)


def _table(head: str, rows: Iterable[str]) -> str:
    return "\n".join([head, *rows]) + "\n"


def _row(option: Option[Any]) -> str:
    allowed = f"only `{option.default}`" if option.is_fixed else option.allowed
    return f"| {_code(option.names)} | {allowed} | {_shown(option)} | {meanings().get(option.name, '')} |"


def meanings() -> dict[str, str]:
    """Return the meaning of each option in the words of the product.

    A meaning is the first sentence of the option's docstring, or of its entry among the arguments of a settings class.
    """
    found: dict[str, str] = {}
    for settings in SETTINGS:
        entries = dict(_ENTRY.findall(inspect.getdoc(settings) or ""))
        for field, option in rows_by_field(settings).items():
            if field in entries:  # else it is a second field of one option
                found.setdefault(option.name, _sentence(entries[field]))
    for module in (client_options, known_options, job_settings):
        for statement, following in pairwise(ast.parse(inspect.getsource(module)).body):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(following, ast.Expr):
                continue
            option = getattr(module, ast.unparse(statement.target))
            text = ast.literal_eval(following.value)
            if isinstance(option, Option):
                found[option.name] = _sentence(text[:1].lower() + text[1:])
    return found


def _sentence(text: str) -> str:
    return re.split(r"\.(?:\s|$)", " ".join(text.split()))[0]


def _shown(option: Option[Any]) -> str:
    """Return a default as readers see it."""
    match option.default:
        case _ if option.shown is not None:
            return option.shown
        case None:
            return ""
        case bool():
            return str(option.default).lower()
        case Enum():
            return str(option.default.value)
        case _:
            return str(option.default)


def _ignored() -> Iterator[str]:
    reasons = IGNORED | {f"{prefix}*": reason for prefix, reason in IGNORED_PREFIXES.items()}
    for reason in dict.fromkeys(reasons.values()):
        yield f"{_code(sorted(name for name in reasons if reasons[name] == reason))} | {reason}"


def _of_processes() -> Iterator[str]:
    for whose, options in (("TaskManager", TASK_MANAGER_OPTIONS), ("JobManager", JOB_MANAGER_OPTIONS)):
        yield from (f"{whose} | `{name}` | {option.meaning}" for name, option in options.items())


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it must be written; 1: it must."""
    parser = argparse.ArgumentParser(prog="python -m tests.options_page", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/options.md")
    text = PAGE.read_text(encoding="utf-8")
    wanted = page(text)
    if parser.parse_args(arguments).write:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    print("as the tables print it" if text == wanted else f"{PAGE} is not what the tables print: --write")
    return int(text != wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
