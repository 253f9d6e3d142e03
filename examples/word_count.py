"""Counts the words of many files on a flowlet cluster.

Without arguments it counts the words of the Python standard library's source files on an embedded cluster: one
JobManager and two TaskManager processes, whose data crosses real TCP connections.  With ``--jobmanager HOST:PORT`` it
uses a running cluster.  ``--kill-one`` kills a TaskManager on the way, ``--kill-one jobmanager`` the JobManager of a
cluster that it starts by the commands that a user would type; the counts are exact nevertheless.
"""

import argparse
import csv
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from flowlet.common import Configuration, Types, WatermarkStrategy
from flowlet.common.job_client import JobClient
from flowlet.datastream import CloseableIterator, DataStream, RuntimeExecutionMode, StreamExecutionEnvironment
from flowlet.datastream.connectors.file_system import FileSource, StreamFormat
from flowlet.errors import FlowletError

SPLIT_BYTES = 16 * 1024 * 1024
CHECKPOINT_MS = 500
REPORT_INTERVAL_S = 0.25
REPORT_WIDTH = 130  # columns of tables that do not go to a terminal
NARROW_WIDTH = 100  # a terminal with fewer columns cannot show the table of tasks
_WORD = re.compile(r"\w+")


class InputError(Exception):
    """An input or output is not usable; the message is one line."""


# ---------------------------------------------------------------- the job


def split(line: str) -> list[tuple[str, int]]:
    """Return the words of a line, each with the count 1."""
    return [(word, 1) for word in _WORD.findall(line.lower())]


def word_of(pair: tuple[str, int]) -> str:
    """Return the word: the key."""
    return pair[0]


def build(env: StreamExecutionEnvironment, files: Sequence[str]) -> DataStream:
    """Return the stream of final counts: lines -> words -> the sum per word."""
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *files)
    # Counts do not depend on the order of lines, so both subtasks may read parts of one large file.
    source = builder.set_split_size(SPLIT_BYTES).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "read lines")
    words = lines.flat_map(split, Types.TUPLE([Types.STRING(), Types.LONG()])).name("split")
    return words.key_by(word_of, Types.STRING()).sum(1).name("count")


# ---------------------------------------------------------------- inputs and outputs


def find_files(inputs: Sequence[Path]) -> list[str]:
    """Return the files to read: the given ones, and all ``*.py`` and ``*.txt`` files below the given folders.

    Raises:
        InputError: a path is missing, unreadable or of another kind, or a folder has no such file.
    """
    files: list[str] = []
    for path in inputs:
        found = list(_files_below(path)) if path.is_dir() else [path]
        if not found:
            raise InputError(f"{path}: the folder has no *.py or *.txt file")
        for file in found:
            _check_readable(file)
        files += map(str, found)
    return files


def default_inputs() -> list[str]:
    """Return the source files of the standard library, without installed packages."""
    library = Path(sysconfig.get_path("stdlib"))
    found = [file for file in _files_below(library) if not {"site-packages", "dist-packages"} & set(file.parts)]
    return [str(file) for file in found if file.suffix == ".py" and os.access(file, os.R_OK)]


def _files_below(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: {error.strerror}") from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if name.endswith((".py", ".txt")))


def _check_readable(file: Path) -> None:
    try:
        if not file.is_file():
            reason = "not a file or folder" if file.exists() else "no such file or folder"
            raise InputError(f"{file}: {reason}")
        with file.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error


def check_output(file: Path) -> None:
    """Check before the job runs that its result can be written.  Raises InputError if it cannot."""
    if file.is_dir():
        raise InputError(f"{file}: is a folder")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise InputError(f"{file}: cannot be written, its folder is missing or read-only")


def write_csv(file: Path, counts: Sequence[tuple[str, int]]) -> None:
    """Write the whole file or none: to a temporary file, which is then renamed."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(("word", "count"))
            writer.writerows(counts)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


# ---------------------------------------------------------------- what is shown


class ProgressView:
    """Shows records and records per second: a live line on a terminal, else a line per second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar = self._progress.add_task("counting words", total=1.0, text="")
        self._last_records = 0
        self._start_time = self._last_time = time.monotonic()

    def __enter__(self) -> "ProgressView":
        self._start_time = self._last_time = time.monotonic()
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def finish(self, records: int) -> None:
        """Print the last line if there is no terminal, so that even a short job has one."""
        if not self._console.is_terminal:
            rate = records / max(time.monotonic() - self._start_time, 1e-3)
            self._print(f"{records:,} words, {rate:,.0f} records/s on average")

    def _print(self, text: str) -> None:
        self._console.print(f"counting words: {text}", highlight=False, soft_wrap=True)

    def show(self, records: int, fraction: float) -> None:
        """Show how many words the sources emitted, and which part of the input they read; updated once a second."""
        self._progress.update(self._bar, completed=fraction)
        now = time.monotonic()
        elapsed = now - self._last_time
        if elapsed < 1.0:
            return
        text = f"{records:,} words, {(records - self._last_records) / elapsed:,.0f} records/s"
        self._last_records, self._last_time = records, now
        if self._console.is_terminal:
            self._progress.update(self._bar, text=text)
        else:
            self._print(text)


def progress_of(document: dict[str, Any]) -> tuple[int, float]:
    """Return how many words the sources emitted, and which part of their input they read (nearly equal for all)."""
    metrics = [subtask["metrics"] for subtask in document["vertices"][0]["subtasks"]]
    fractions = [each["source_progress"] or 0.0 for each in metrics]
    return sum(each["num_records_out"] for each in metrics), sum(fractions) / len(fractions)


def top_table(counts: Sequence[tuple[str, int]], top: int) -> Table:
    """Return a table of the most frequent words."""
    table = Table("#", "word", "count", title=f"the {min(top, len(counts))} most frequent words", min_width=32)
    table.columns[0].justify = table.columns[2].justify = "right"
    for rank, (word, count) in enumerate(counts[:top], start=1):
        table.add_row(str(rank), word, f"{count:,}")
    return table


def task_rows(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield name and counters of every subtask, under the names that are shown."""
    for vertex in document["vertices"]:
        for subtask in vertex["subtasks"]:
            metrics = subtask["metrics"]
            name = f"{vertex['name']}\nsubtask {subtask['subtask'] + 1} of {vertex['parallelism']}, {subtask['state']}"
            yield (
                name,
                {
                    "records in": metrics["num_records_in"],
                    "records out": metrics["num_records_out"],
                    "bytes in": metrics["num_bytes_in_local"] + metrics["num_bytes_in_remote"],
                    "bytes out": metrics["num_bytes_out"],
                    "buffers in": metrics["num_buffers_in"],
                    "buffers out": metrics["num_buffers_out"],
                    "credits granted": metrics["num_credits_granted"],
                    "ms idle": metrics["accumulated_idle_ms"],
                    "ms busy": metrics["accumulated_busy_ms"],
                    "ms backpressured": metrics["accumulated_back_pressured_ms"],
                },
            )


def task_table(document: dict[str, Any]) -> Table:
    """Return a table of what each subtask read (first line) and wrote (second line), and how it spent its time."""
    table = Table("task", "", title="tasks", show_lines=True)
    for name in ("records", "bytes", "buffers", "credits granted", "ms idle", "ms busy", "ms backpressured"):
        table.add_column(name, justify="right")
    for name, counters in task_rows(document):
        pairs = [f"{counters[f'{what} in']:,}\n{counters[f'{what} out']:,}" for what in ("records", "bytes", "buffers")]
        rest = [f"{counters[what]:,}" for what in ("credits granted", "ms idle", "ms busy", "ms backpressured")]
        table.add_row(name, "in\nout", *pairs, *rest)
    return table


def task_lines(document: dict[str, Any]) -> Iterator[str]:
    """Return the contents of ``task_table`` as lines for a narrow terminal."""
    for name, counters in task_rows(document):
        yield name.replace("\n", ", ")
        texts = [f"{count:,} {what}" for what, count in counters.items()]
        for start in range(0, len(texts), 3):
            yield "    " + ", ".join(texts[start : start + 3])


# ---------------------------------------------------------------- running it


class Observer:
    """Shows the progress of a job until it is closed."""

    def __init__(self, job: JobClient, view: ProgressView) -> None:
        self._job = job
        self._view = view
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress")

    def __enter__(self) -> "Observer":
        self._view.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._view.__exit__(*exception)
        if exception[0] is None:
            self._view.finish(progress_of(self._job.metrics())[0])

    def _watch(self) -> None:
        while not self._is_over.wait(REPORT_INTERVAL_S):
            try:
                self._view.show(*progress_of(self._job.metrics()))
            except FlowletError:
                return  # the job has ended, or its JobManager is gone: the main thread reports it


def count_words(
    files: Sequence[str], options: argparse.Namespace, view: ProgressView
) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Run the job; returns the counts, most frequent words first, and the job's document with the counters of every
    task.

    Raises:
        FlowletError: the job could not be started, or it failed.
    """
    with LoopbackCluster(options.parallelism) if options.kill_one == "jobmanager" else nullcontext() as cluster:
        return count_on(cluster, files, options, view)


def count_on(
    cluster: "LoopbackCluster | None", files: Sequence[str], options: argparse.Namespace, view: ProgressView
) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Run the job as ``count_words`` does; ``cluster``: the cluster whose JobManager is to be killed, if one is."""
    configuration = Configuration()
    if cluster is not None:
        configuration.set_string("flowlet.jobmanager", cluster.address)
        configuration.set_string("execution.checkpointing.dir", str(cluster.folder / "checkpoints"))
    if options.jobmanager is not None:
        configuration.set_string("flowlet.jobmanager", options.jobmanager)
    if options.kill_one:
        configuration.set_string("restart-strategy.type", "fixed-delay").set_string(
            "restart-strategy.fixed-delay.delay", "100 ms"
        )
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(options.parallelism)
    if options.kill_one:
        env.set_runtime_mode(RuntimeExecutionMode.STREAMING).enable_checkpointing(CHECKPOINT_MS)
    else:
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    results = build(env, files).execute_and_collect("word count")
    assert isinstance(results, CloseableIterator)
    job = results.job_client
    kill = kill_task_manager if cluster is None else cluster.replace_job_manager
    with results, Observer(job, view):
        # Counts are running: the last one of each word is the result.
        final = dict(kill_after_first(results, kill) if options.kill_one else results)
        document = job.metrics()
    return sorted(final.items(), key=lambda pair: (-pair[1], pair[0])), document


def kill_after_first(results: Iterator[tuple[str, int]], kill: Callable[[], None]) -> Iterator[tuple[str, int]]:
    """Yield all results; call ``kill`` after the first one, which shows that a checkpoint is complete."""
    for first in results:
        kill()
        yield first
        break
    yield from results


def kill_task_manager() -> None:
    """Kill one of this program's TaskManagers; another one comes in its place."""
    victims = [pid for pid in child_pids() if b"flowlet.tm" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(victims[0], signal.SIGKILL)
    print(f"word_count: killed TaskManager process {victims[0]} of {len(victims)}", file=sys.stderr)


class LoopbackCluster:
    """A JobManager that keeps its jobs, and TaskManagers, each a process as ``python -m flowlet.jm`` and ``flowlet.tm``
    start it.

    Life cycle: a context manager.
    """

    def __init__(self, num_task_managers: int) -> None:
        self._num_task_managers = num_task_managers
        self._stack = ExitStack()
        self.address = ""
        """Of the JobManager."""

    def __enter__(self) -> "LoopbackCluster":
        with self._stack:
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="word-count-")))
            self._job_manager = self._start_job_manager("0")
            task_managers = [
                self._start("flowlet.tm", "--jobmanager", self.address) for _ in range(self._num_task_managers)
            ]
            for each in task_managers:
                self._ready_line(each)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def replace_job_manager(self) -> None:
        """Kill the JobManager, and start another one at its port."""
        killed, start_s = self._job_manager, time.monotonic()
        killed.kill()
        killed.wait()
        self._job_manager = self._start_job_manager(self.address.rpartition(":")[2])
        seconds = time.monotonic() - start_s
        print(
            f"word_count: killed JobManager process {killed.pid}; another one listens after {seconds:.1f} s",
            file=sys.stderr,
        )

    def _start_job_manager(self, port: str) -> "subprocess.Popen[str]":
        job_manager = self._start("flowlet.jm", "--port", port, "--job-store", str(self.folder / "jobs"))
        self.address = self._ready_line(job_manager).rpartition("/")[2]
        return job_manager

    def _start(self, module: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", module, "--log-level", "error", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process

    def _ready_line(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None, "it is a pipe"
        line = process.stdout.readline().strip()
        if not line:
            raise InputError(f"{process.args!r} did not start")
        return line


def child_pids() -> list[int]:
    """Return the processes that this program has started (Linux only)."""
    return sorted(
        int(pid)
        for children in Path("/proc/self/task").glob("*/children")
        for pid in children.read_text("ascii").split()
    )


def report(console: Console, counts: Sequence[tuple[str, int]], document: dict[str, Any], top: int) -> None:
    """Print the result."""
    total, seconds = sum(count for _, count in counts), max(document["duration"], 1) / 1000
    console.print(top_table(counts, top))
    if console.width < NARROW_WIDTH:
        console.print(*task_lines(document), sep="\n", highlight=False)
    else:
        console.print(task_table(document))
    console.print(
        f"{total:,} words, {len(counts):,} different ones, in {seconds:.1f} s: {total / seconds:,.0f} words/s",
        highlight=False,
    )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a wrong one ends the program with exit code 2."""

    def positive(text: str) -> int:
        if (number := int(text)) < 1:
            raise ValueError(text)
        return number

    def address(text: str) -> str:
        host, _, port = text.rpartition(":")
        if not host or not 1 <= int(port) <= 65535:
            raise ValueError(text)
        return text

    parser = argparse.ArgumentParser(description="Count words on a flowlet cluster.")
    parser.add_argument(
        "--input", nargs="+", type=Path, metavar="FILE|DIR", help="default: the standard library's source files"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.csv", help="write all counts: word,count")
    parser.add_argument(
        "--parallelism", type=positive, default=2, metavar="N", help="subtasks of each operator (default: 2)"
    )
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="read the input N times (default: 1)")
    parser.add_argument("--jobmanager", type=address, metavar="HOST:PORT", help="use this cluster; default: start one")
    parser.add_argument(
        "--kill-one",
        nargs="?",
        const="taskmanager",
        choices=("taskmanager", "jobmanager"),
        help="kill one TaskManager, or the JobManager, on the way: the counts stay right (Linux)",
    )
    parser.add_argument("--top", type=positive, default=20, metavar="N", help="how many words to show (default: 20)")
    options = parser.parse_args(arguments)
    if options.kill_one and options.jobmanager is not None:
        parser.error("--kill-one kills a process of this program's own cluster: leave out --jobmanager")
    return options


def main() -> int:
    """Check the input, run the job, print the result; returns the exit code."""
    options = parse_options()
    console = Console(width=None if sys.stdout.isatty() else REPORT_WIDTH)
    try:
        files = default_inputs() if options.input is None else find_files(options.input)
        if options.output is not None:
            check_output(options.output)
        start_s = time.monotonic()
        counts, document = count_words(files * options.repeat, options, ProgressView(console))
        if options.kill_one:
            print(
                f"word_count: {time.monotonic() - start_s:.1f} s in all, with the start of the cluster", file=sys.stderr
            )
        if options.output is not None:
            write_csv(options.output, counts)
    except InputError as error:
        print(f"word_count: {error}", file=sys.stderr)
        return 2
    except FlowletError as error:
        print(f"word_count: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("word_count: interrupted", file=sys.stderr)
        return 130
    report(console, counts, document, options.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
