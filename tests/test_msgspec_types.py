"""msgspec learns what a type is while its module is imported, never while threads run.

A thread that decodes a struct which another thread is just learning ends the process: ``flowlet/rpc/converters.py``.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.syntax_trees import nodes_of

ROOT: Final = Path(__file__).resolve().parent.parent
# Where a decoder is made later, and why nothing can go wrong.
KNOWN: Final = {
    "flowlet/rpc/converters.py": "called while a module is imported; learns the type before the first conversion",
    "flowlet/types/declared_records.py": "a tuple of basic types, which msgspec keeps nowhere",
}


def _late_uses(text: str) -> Iterator[ast.Call]:
    """Yield calls that make msgspec learn a type: ``decode(..., type=...)`` and ``convert`` anywhere, ``Decoder(...)``
    in a function.
    """
    for node in nodes_of(text):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_typed = node.func.attr == "decode" and any(each.arg == "type" for each in node.keywords)
            if is_typed or (node.func.attr == "convert" and ast.unparse(node.func.value) == "msgspec"):
                yield node
    for function in nodes_of(text):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    "msgspec.json.Decoder",
                    "msgspec.msgpack.Decoder",
                ):
                    yield node


@pytest.mark.slow
def test_types_are_learned_while_modules_are_imported() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}"
        for package in ("flowlet", "netstack")
        for path in (ROOT / package).rglob("*.py")
        if str(path.relative_to(ROOT)) not in KNOWN
        if re.search(r"msgspec|\btype=", text := path.read_text(encoding="utf-8"))
        for node in _late_uses(text)
    }

    assert not found, "make a decoder where the module begins, or call converter_to() there: " + ", ".join(
        sorted(found)
    )


# The second thread reads while the first one has learned a part of the types.  Without decoders made at import this
# ends the process.
_TWO_THREADS_READ: Final = """
import threading
from msgspec import _utils  # where msgspec looks at a class that it learns

from flowlet.checkpoint.task.snapshots import OperatorState, SubtaskState
from flowlet.checkpoint.task.state_codec import decode_state, encode_state

content = encode_state(SubtaskState({"0" * 32: OperatorState([1, 2])}))
calls, learn = [], _utils._get_class_mro_and_typevar_mappings

def read():
    assert decode_state(content).operators["0" * 32].own == [1, 2]

def learn_slowly(kind):
    calls.append(kind)
    if len(calls) == 2:
        other = threading.Thread(target=read)
        other.start()
        other.join()
    return learn(kind)


_utils._get_class_mro_and_typevar_mappings = learn_slowly
read()
print("learned late:", calls)
"""


@pytest.mark.slow
def test_threads_may_read_their_first_states_at_once() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _TWO_THREADS_READ], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )

    assert (found.returncode, found.stdout) == (0, "learned late: []\n"), found.stderr
