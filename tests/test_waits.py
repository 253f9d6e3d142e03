"""Every wait in the product has a deadline, or a name and something that ends it.

A wait without a deadline has a comment on its line or above it: ``# waits for NAME; ended by WHAT``.  A report of a
stuck task shows that name (``flowlet.tm.failure``).  A timeout that may be None or -1, or that is only a slice of a
loop, is no deadline.  A call that only looks like a wait says so: ``# no wait: WHY``.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.syntax_trees import tree_of

REPOSITORY = Path(__file__).parent.parent
NAMED = re.compile(r"# (waits for \S.*; ended by|no wait:) \S")
# Methods that wait.  Of ``get`` only calls without arguments: a queue's, not a dictionary's, nor a list state's own.
_WAITS = {
    "wait",
    "wait_for",
    "wait_closed",
    "result",
    "join",
    "acquire",
    "select",
    "recv",
    "communicate",
    "waitpid",
    "sock_accept",
}
_AWAITED = {"gather", "shield", "receive", "send_bytes", "read"}
# Parsing the other modules would take most of the time.
_MAY_WAIT = re.compile(rf"\b(await|async)\b|\.({'|'.join(_WAITS | {'get'})})\(")
_NO_DEADLINE = re.compile(r"_SLICE_S$|_INTERVAL_S$")
# Calls with these names that do not wait, by the text of the object on which they are called.
_OTHER_OBJECTS = re.compile(
    r"^(os\.path|os\.pathsep|'.*'|\".*\"|f'.*'|b'.*'|self\._select|shared_loop|_are_plain_alone|_classes_at_hand|_keeps_classes|_replaced|TaskContext"
    # Windows, and keyed states.
    r"|GlobalWindow|count|state|self\._stored|self\.state|self\._state|self\._contents|self\._fire_time\(ctx\))$"
)


@dataclass(frozen=True)
class Wait:
    """One call or await that can last."""

    path: str
    line: int
    text: str
    has_deadline: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Finder(ast.NodeVisitor):
    def __init__(self, path: str) -> None:
        self.path = path
        self.waits: list[Wait] = []
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self._num_timeouts = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node)
        outer, self._num_timeouts = self._num_timeouts, 0
        self.generic_visit(node)
        self._num_timeouts = outer
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        is_timeout = any(
            ast.unparse(item.context_expr).startswith(("asyncio.timeout(", "running_timeout(")) for item in node.items
        )
        self._num_timeouts += is_timeout
        self.generic_visit(node)
        self._num_timeouts -= is_timeout

    def visit_Await(self, node: ast.Await) -> None:
        if not isinstance(node.value, ast.Call):
            self._add(node, has_deadline=False)
        elif _name(node.value) in _AWAITED:
            self._add(node, has_deadline=self._has_deadline(node.value))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        is_bounded = ast.unparse(node.func) == "asyncio.wait_for" and len(node.args) > 1
        is_queue = _name(node) == "get" and not (node.args or node.keywords or ast.unparse(node.func) == "self.get")
        if (is_queue or _name(node) in _WAITS) and not _is_other(node):
            self._add(node, has_deadline=is_bounded or self._has_deadline(node))
        self._num_timeouts += is_bounded
        self.generic_visit(node)
        self._num_timeouts -= is_bounded

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._add(node.iter, has_deadline=False)
        self.generic_visit(node)

    def _add(self, node: ast.expr, *, has_deadline: bool) -> None:
        self.waits.append(Wait(self.path, node.lineno, ast.unparse(node), has_deadline or self._num_timeouts > 0))

    def _has_deadline(self, call: ast.Call) -> bool:
        name = _name(call)
        is_method = not ast.unparse(call.func).startswith("asyncio.")
        keywords = {each.arg: each.value for each in call.keywords}
        if name == "acquire":
            if "blocking" in keywords and ast.unparse(keywords["blocking"]) == "False":
                return True
            timeout = keywords.get("timeout")
        else:
            positional = (
                call.args[-1] if call.args and is_method and (name not in _AWAITED or name == "receive") else None
            )
            timeout = next((keywords[each] for each in ("timeout", "timeout_s") if each in keywords), positional)
        return timeout is not None and self._is_finite(timeout)

    def _is_finite(self, timeout: ast.expr) -> bool:
        names = {each.id for each in ast.walk(timeout) if isinstance(each, ast.Name)}
        may_be_none = _names_that_may_be_none(self._functions[-1]) if self._functions else set()
        may_be_endless = _has_none(timeout) or "-1" in ast.unparse(timeout) or names & may_be_none
        return not may_be_endless and not any(_NO_DEADLINE.search(each) for each in names)


def _names_that_may_be_none(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = {each.arg for each in arguments if each.annotation is not None and "None" in ast.unparse(each.annotation)}
    for each in ast.walk(function):
        if isinstance(each, ast.Assign) and _has_none(each.value):
            names |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    return names


def _has_none(node: ast.expr) -> bool:
    return any(isinstance(each, ast.IfExp) and _is_none(each.body, each.orelse) for each in ast.walk(node)) or _is_none(
        node
    )


def _is_none(*nodes: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and each.value is None for each in nodes)


def _name(call: ast.Call) -> str:
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )


def _is_other(call: ast.Call) -> bool:
    return not isinstance(call.func, ast.Attribute) or bool(_OTHER_OBJECTS.match(ast.unparse(call.func.value)))


def waits_of(source: str, path: str = "module.py") -> list[Wait]:
    if not _MAY_WAIT.search(source):
        return []
    finder = Finder(path)
    finder.visit(tree_of(source))
    return finder.waits


def product() -> Iterator[tuple[str, str]]:
    for package in ("netstack", "flowlet"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            yield str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")


@pytest.mark.slow  # parses every module that may wait
def test_every_wait_without_a_deadline_has_a_name_and_every_name_stands_at_one() -> None:
    """Every wait without a deadline has a name, and every name stands at one: a name that outlived its wait would be a
    lie.
    """
    unnamed, idle = [], []
    for path, source in product():
        waits = {wait.line: wait for wait in waits_of(source, path) if not wait.has_deadline}
        named = {number for number, line in enumerate(source.splitlines(), start=1) if NAMED.search(line)}
        unnamed += [str(wait) for line, wait in waits.items() if not named & {line - 1, line}]
        idle += [f"{path}:{line}" for line in sorted(named) if line not in waits and line + 1 not in waits]

    assert unnamed == []
    assert idle == []


@pytest.mark.parametrize(
    ("source", "has_deadline"),
    [
        ("lock.acquire()", False),
        ("lock.acquire(timeout=-1 if left_s is None else left_s)", False),
        ("lock.acquire(timeout=_PARK_SLICE_S)", False),
        ("lock.acquire(timeout=2.0)", True),
        ("lock.acquire(blocking=False)", True),
        ("event.wait()", False),
        ("event.wait(timeout_s)", True),
        ("def f(timeout_s: float | None):\n    event.wait(timeout_s)", False),
        ("def f(deadline):\n    left_s = None if deadline is None else deadline\n    event.wait(left_s)", False),
        ("future.result()", False),
        ("future.result(timeout=1)", True),
        ("queue.get()", False),
        ("async def f():\n    await queue.get()", False),
        ("async def f():\n    async with asyncio.timeout(1):\n        await queue.get()", True),
        ("async def f():\n    await asyncio.wait(tasks)", False),
        ("async def f():\n    await asyncio.wait(tasks, timeout=1)", True),
        ("async def f():\n    await websocket.receive()", False),
        ("async def f(timeout_s: float):\n    await websocket.receive(timeout_s)", True),
        ("async def f():\n    await future", False),
        ("async def f():\n    await socket.send_bytes(message)", False),
    ],
)
def test_the_search_finds_what_it_shall(source: str, has_deadline: bool) -> None:
    found = waits_of(source)

    assert found, "a wait"
    assert all(wait.has_deadline is has_deadline for wait in found)


@pytest.mark.parametrize(
    "source",
    [
        "iter(self.get())",
        '", ".join(names)',
        "os.path.join(a, b)",
        'mapping.get("key")',
        "async def f():\n    await ours()",
    ],
)
def test_the_search_finds_nothing_else(source: str) -> None:
    assert waits_of(source) == []
