"""The progress that a user sees on a terminal while a job runs: an address to look at, and a line that leaves no trace
and mixes with no other output.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowlet.client import progress
from flowlet.client.progress import Answer, LastRow, describe
from flowlet.common.options.client_options import progress_mode
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from flowlet.errors import ConfigError
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import hold, released
from tests.flowlet.client.programs import REPOSITORY, variables_of
from tests.waiting import PATIENCE_S

ROWS, COLUMNS = 12, 200
_CONTROL = re.compile(r"\x1b\[(?P<numbers>[\d;]*)(?P<letter>[A-Za-z])|\x1b(?P<short>[78D])|(?P<text>.)", re.DOTALL)


class Screen:
    """A terminal of a few lines, which knows what a VT100 does with cursor, region and erasing."""

    def __init__(self) -> None:
        self.rows = [""] * ROWS
        self.history: list[str] = []  # what has left at the top
        self.region = (1, ROWS)
        self._row, self._column = 1, 1
        self._saved = (1, 1)

    def feed(self, text: str) -> None:
        for match in _CONTROL.finditer(text):
            if match["text"] is not None:
                self._print(match["text"])
            elif match["short"] is not None:
                self._short(match["short"])
            else:
                self._sequence(match["letter"], [int(each) for each in match["numbers"].split(";") if each])

    @property
    def lines(self) -> list[str]:
        """All that was printed and can be scrolled to."""
        return [line for line in [*self.history, *(each.rstrip() for each in self.rows)] if line]

    def _print(self, character: str) -> None:
        if character == "\r":
            self._column = 1
        elif character == "\n":
            self._index()
        else:
            row = self.rows[self._row - 1].ljust(self._column - 1)
            self.rows[self._row - 1] = row[: self._column - 1] + character + row[self._column :]
            self._column += 1
            assert self._column <= COLUMNS + 1, "a line is longer than the screen is wide"

    def _index(self) -> None:
        first, last = self.region
        if self._row != last:
            self._row = min(self._row + 1, ROWS)
            return
        gone = self.rows.pop(first - 1)
        self.history += [gone.rstrip()] if first == 1 else []
        self.rows.insert(last - 1, "")

    def _short(self, character: str) -> None:
        if character == "7":
            self._saved = self._row, self._column
        elif character == "8":
            self._row, self._column = self._saved
        else:
            self._index()

    def _sequence(self, letter: str, numbers: list[int]) -> None:
        match letter, numbers:
            case "r", []:
                self.region, self._row, self._column = (1, ROWS), 1, 1
            case "r", [first, last]:
                self.region, self._row, self._column = (first, last), 1, 1
            case "H", [row, column]:
                self._row, self._column = row, column
            case "A", []:
                self._row = max(self.region[0], self._row - 1)
            case "K", [2]:
                self.rows[self._row - 1] = ""
            case _:
                raise AssertionError(f"unknown sequence {letter} {numbers}")


class Terminal:
    """The user's end of a pseudo terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.screen = Screen()
        self.text = ""

    def read(self) -> bool:
        """Read the written bytes; return False at the end."""
        assert select.select([self._fd], [], [], PATIENCE_S)[0], f"nothing more was written: {self.text!r}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # all other ends are closed
            return False
        self.text += data.decode()
        self.screen.feed(data.decode())
        return bool(data)

    def read_until(self, pattern: str) -> None:
        while not re.search(pattern, self.text):
            assert self.read(), f"it ended without {pattern!r}: {self.text!r}"


@contextmanager
def opened() -> Iterator[tuple[Terminal, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    try:
        yield Terminal(ours), theirs
    finally:
        os.close(ours)
        os.close(theirs)


PROGRAM = """
import os, sys, time
from flowlet.datastream import StreamExecutionEnvironment

def show(number):
    print(f"record {number} from a function")
    os.write(2, f"line {number} of a process\\n".encode())
    if number == 20:
        sys.stdout.flush()
        while not os.path.exists(GO_ON):
            time.sleep(0.01)
    return number

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(int(sys.argv[1]))
print("before", flush=True)
env.from_collection(list(range(30))).map(show).print()
env.execute("shown")
print("after", flush=True)
"""
PROGRESS = r"shown RUNNING \d+:\d\d"


def environment(**more: str) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONASYNCIODEBUG", "FLOWLET_PROGRESS")
    }
    return {**inherited, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", **more}


def run_on_terminal(folder: Path, parallelism: int, variables: Mapping[str, str]) -> Terminal:
    """Run the program, go on once its line is there, and read all that it writes."""
    program, go_on = folder / "program.py", folder / "go on"
    program.write_text(PROGRAM.replace("GO_ON", repr(str(go_on))))
    with opened() as (terminal, theirs):
        process = subprocess.Popen(
            [sys.executable, str(program), str(parallelism)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**variables),
        )
        try:
            terminal.read_until(PROGRESS)
            assert re.match(PROGRESS, terminal.screen.rows[-1]), "it has the last row"
            go_on.touch()
            terminal.read_until("after\r\n")
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
    return terminal


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in process", "children", "remote"])
def test_a_line_is_rewritten_in_place_and_leaves_no_trace(where: str, cluster: SharedCluster, tmp_path: Path) -> None:
    """No output of the program, its functions or its child processes is mixed with the line, on either stream."""
    variables = variables_of(cluster.target, tmp_path) if where == "remote" else {}

    terminal = run_on_terminal(tmp_path, 2 if where == "children" else 1, variables)

    lines = [line.partition("> ")[2] if re.match(r"\d+> ", line) else line for line in terminal.screen.lines]
    [look] = [line for line in lines if line.startswith("job ")]
    address = {
        "in process": "in this process",
        "children": "flowlet job [0-9a-f]{8} -m 127.0.0.1:.*",
        "remote": ".* -m 127.0.0.1:.*",
    }
    assert re.fullmatch(rf"job 'shown' [0-9a-f]{{32}}: {address[where]}", look)
    assert "shown RUNNING" not in "".join(lines)
    assert terminal.screen.region == (1, ROWS)
    printed = {"before", "after"}
    if where != "remote":
        printed |= {
            text
            for number in range(30)
            for text in (f"record {number} from a function", f"line {number} of a process", str(number))
        }
    assert set(lines) == {look, *printed}
    assert len(lines) == len(printed) + 1


@pytest.mark.parametrize("wish", ["", "on"])
def test_without_a_terminal_nothing_is_shown_unless_it_is_asked_for(
    wish: str, cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWLET_PROGRESS", wish)
    made = cluster.environment()
    made.from_collection([1]).sink_to(DiscardingSink())

    result = made.execute("shown")

    out, errors = capfd.readouterr()
    address = f"flowlet job {str(result.get_job_id())[:8]} -m {cluster.target.host}:{cluster.target.port}"
    assert out == ""
    assert errors == (f"job 'shown' {result.get_job_id()}: {address}\n" if wish else "")


@pytest.mark.parametrize(
    ("mode", "term", "is_shown"),
    [
        ("auto", "xterm", True),
        ("off", "xterm", False),
        ("auto", "dumb", False),
        ("auto", "", False),
        ("on", "dumb", True),
    ],
)
def test_on_a_terminal_it_can_be_forbidden(
    mode: str, term: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal without a screen has no row for it."""
    with opened() as (_, theirs), open(theirs, "w", encoding="utf-8", closefd=False) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("TERM", term)
        found = progress.is_wanted(progress_mode({"FLOWLET_PROGRESS": mode}))
        monkeypatch.undo()

    assert found is is_shown


def test_another_value_of_the_variable_is_an_error_before_the_job_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_PROGRESS", "yes")
    made = StreamExecutionEnvironment(submit=lambda *_: pytest.fail("it was started"))
    made.from_collection([1]).print()

    with pytest.raises(ConfigError, match="FLOWLET_PROGRESS is 'yes'; set it to 'auto', 'on' or 'off', or unset it"):
        made.execute()


def document(**more: Any) -> dict[str, Any]:
    def vertex(name: str, emitted: int, *busy: int) -> dict[str, Any]:
        operators = [{"num_records_out": emitted}, {"num_records_out": 1}]
        subtasks = [
            {"metrics": {"num_records_out": 0, "operators": operators, "busy_ms_per_second": each}} for each in busy
        ]
        return {"id": name, "name": name, "subtasks": subtasks}

    nodes = [{"id": "Source", "inputs": []}, {"id": "Map", "inputs": [{"id": "Source"}]}]
    vertices = [vertex("Source", 1_000, 100, 200), vertex("Map", 9_999, 900, 960)]
    return {
        "state": "RUNNING",
        "duration": 3_725_000,
        "plan": {"nodes": nodes},
        "vertices": vertices,
        "numRestarts": 0,
        **more,
    }


def test_the_line_says_what_the_job_does() -> None:
    """The line shows the records of the sources since the last time, the vertex that computes most, checkpoints and
    restarts.
    """
    before = Answer(10.0, document(), None)
    first = describe("a job", before, None)
    later = document(numRestarts=2, duration=65_000, state="RESTARTING")
    later["vertices"][0]["subtasks"][0]["metrics"]["operators"] = [{"num_records_out": 7_000}]
    second = describe("a job", Answer(12.0, later, {"counts": {"completed": 1}}), before)

    assert first == "a job RUNNING 1:02:05 | busiest Map 93%"
    assert second == "a job RESTARTING 1:05 | 3,000 records/s | busiest Map 93% | 1 checkpoint | 2 restarts"


def test_what_counts_anew_after_a_restart_is_no_negative_rate() -> None:
    before = Answer(10.0, document(), None)
    later = document(vertices=[])

    assert describe("x" * 40, Answer(11.0, later, None), before) == f"{'x' * 29}... RUNNING 1:02:05 | 0 records/s"


def test_a_row_follows_the_size_of_the_terminal_and_is_cut_to_it() -> None:
    """Wide characters have two columns; control characters of names do nothing."""
    with opened() as (terminal, theirs):
        row = LastRow(theirs)
        os.write(theirs, b"printed\n" * ROWS)
        row.show("\u6f22" * 120 + "\x1b[2J")
        terminal.read_until("\u6f22\x1b8")
        wide = terminal.screen.rows[-1]
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 2, COLUMNS, 0, 0))
        row.show("too small")
        terminal.read_until(r"\[r\x1b8$")

    assert wide == "\u6f22" * ((COLUMNS - 1) // 2)
    assert "too small" not in terminal.text
    assert terminal.screen.rows[-1] == ""
    assert terminal.screen.lines == ["printed"] * ROWS


def test_a_program_that_reads_key_by_key_has_the_screen_to_itself() -> None:
    """The pager in ``program | less`` is such a program."""
    with opened() as (terminal, theirs):
        attributes = termios.tcgetattr(theirs)
        attributes[3] &= ~termios.ICANON
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        LastRow(theirs).show("not here")
        os.write(theirs, b"the end")
        terminal.read_until("the end")

    assert terminal.text == "the end"


def test_what_fails_while_it_is_shown_does_not_fail_the_job(
    cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on, whatever an answer of the JobManager looks like."""

    def fail(*_: object) -> Any:
        released["job"].set()
        raise KeyError("plan")

    monkeypatch.setattr(progress, "describe", fail)
    monkeypatch.setattr(progress, "_PLAIN_INTERVAL_S", 0.0)
    monkeypatch.setenv("FLOWLET_PROGRESS", "on")
    made = cluster.environment()
    made.from_collection([1]).map(lambda value: hold("job", value)).sink_to(DiscardingSink())

    assert made.execute("goes on").get_net_runtime() >= 0
