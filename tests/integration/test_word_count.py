"""The example program, run as a user runs it: its counts equal ``collections.Counter``, its errors are one line."""

import csv
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from bench.cluster import Process
from examples.word_count import default_inputs
from tests.waiting import PATIENCE_S, Stopwatch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "word_count.py"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("secret")]


def start_example(tmp_path: Path, *args: str | Path) -> Process:
    return Process([sys.executable, str(EXAMPLE), *map(str, args)], log=tmp_path / "stderr.txt")


def run_example(tmp_path: Path, *args: str | Path) -> tuple[int, str, str]:
    with start_example(tmp_path, *args) as process:
        return process.wait(PATIENCE_S), process.stdout, process.stderr


def is_exact(tmp_path: Path, files: Iterable[Path], *args: str | Path) -> tuple[str, str]:
    """Run the example; check that it counts the words of these files; return what it printed."""
    output = tmp_path / "counts.csv"
    code, stdout, stderr = run_example(tmp_path, *args, "--output", output)
    assert code == 0, stderr
    assert list(csv_rows(output)) == by_frequency(counted(files)), stdout
    return stdout, stderr


def counted(files: Iterable[Path]) -> Counter[str]:
    """Return the counts that the example must find, written down in the simplest way."""
    counts: Counter[str] = Counter()
    for file in files:
        for line in file.read_bytes().decode("utf-8", errors="replace").split("\n"):
            counts.update(re.findall(r"\w+", line.lower()))
    return counts


def csv_rows(file: Path) -> Iterator[tuple[str, int]]:
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        assert next(reader) == ["word", "count"]
        for word, count in reader:
            yield word, int(count)


def by_frequency(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def difficult_file(folder: Path) -> Path:
    """Make a file of a line of a megabyte, invalid UTF-8, all kinds of line ends and letters, and no newline at the
    end.
    """
    file = folder / "difficult.txt"
    parts = [b"word%d " % (number % 977) for number in range(150_000)]
    tail = b"\nb\xff\xfead \xe4\xbd \xed\xa0\x80 \xc3\xa9t\xc3\xa9 \xc3\x89T\xc3\x89 \xce\xa3\xce\x91\xce\xa3"
    tail += b"\r\ncarriage\rreturn\n\n\x00nul\x00 last"
    file.write_bytes(b"".join(parts) + tail)
    assert file.stat().st_size > 1_000_000
    return file


def test_the_default_input_is_the_standard_library() -> None:
    """The default input is the standard library's sources, without those of packages that are installed."""
    files = default_inputs()

    assert os.__file__ in files
    assert len(files) > 500
    assert not [file for file in files if not file.endswith(".py") or "site-packages" in file]


def test_the_default_input_is_counted_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library's sources, here an eighth of them, are counted exactly; on the way there is a plain line per
    second, at the end the three reports.
    """
    library = tmp_path / "library"
    library.mkdir()
    for number, file in enumerate(default_inputs()[::8]):
        (library / f"module_{number}.py").symlink_to(file)
    patch = f"import sysconfig\nsysconfig.get_path = lambda name, real=sysconfig.get_path: {str(library)!r} if name == "
    (tmp_path / "sitecustomize.py").write_text(f"{patch}'stdlib' else real(name)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    text = "".join(is_exact(tmp_path, library.iterdir()))

    assert re.search(r"counting words: [\d,]+ words, [\d,]+ records/s", text)
    assert "20 most frequent words" in text
    assert re.search(r"[\d,]+ words/s", text)
    assert re.search(r"credits", text)


@pytest.mark.parametrize(
    ("option", "killed"), [([], "TaskManager"), (["jobmanager"], "JobManager")], ids=["TaskManager", "JobManager"]
)
def test_the_counts_are_exact_although_a_process_of_the_cluster_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str], killed: str
) -> None:
    """Source, counts and results go on from the newest checkpoint; another JobManager with the job store goes on with
    the job.
    """
    monkeypatch.setattr(Process, "starter", subprocess.Popen)  # the example finds its TaskManagers by command lines
    folder = Path(os.__file__).parent / "asyncio"

    _, errors = is_exact(
        tmp_path, [*folder.rglob("*.py")] * 8, "--kill-one", *option, "--input", folder, "--repeat", "8"
    )

    assert f"killed {killed} process" in errors


def test_an_empty_file_has_no_words(tmp_path: Path) -> None:
    empty, output = tmp_path / "empty.txt", tmp_path / "counts.csv"
    empty.touch()

    code, _, stderr = run_example(tmp_path, "--input", empty, "--output", output)

    assert code == 0, stderr
    assert output.read_bytes() == b"word,count\n"


def test_a_line_of_a_megabyte_and_invalid_utf8_are_counted_exactly(tmp_path: Path) -> None:
    file = difficult_file(tmp_path)

    is_exact(tmp_path, [file], "--input", file)


@pytest.mark.parametrize("parallelism", ["1", "3"])
def test_folders_and_repetitions_and_other_parallelisms(tmp_path: Path, parallelism: str) -> None:
    """All ``*.py`` and ``*.txt`` of a folder are read, recursively, and no other file; every file as often as asked."""
    folder, output = tmp_path / "texts", tmp_path / "counts.csv"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.py").write_text("one two\n")
    (folder / "deep" / "b.txt").write_text("two three")
    (folder / "deep" / "c.md").write_text("never counted")

    code, _, stderr = run_example(
        tmp_path, "--input", folder, folder / "a.py", "--repeat", "3", "--parallelism", parallelism, "--output", output
    )

    assert code == 0, stderr
    assert list(csv_rows(output)) == [("two", 9), ("one", 6), ("three", 3)]


@pytest.mark.parametrize("kind", ["missing", "fifo", "bare folder", "second of two", "dangling link"])
def test_an_unusable_input_is_one_line_and_exit_code_2(tmp_path: Path, kind: str) -> None:
    """A bad input is found before anything starts: not even the secret file is made."""
    path = tmp_path / "input"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "bare folder":
            path.mkdir()
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case _:
            assert not path.exists()
    good = tmp_path / "good.txt"
    good.touch()

    code, stdout, stderr = run_example(tmp_path, "--input", *([good, path] if kind == "second of two" else [path]))

    assert code == 2
    assert stdout == ""
    assert stderr.count("\n") == 1
    assert str(path) in stderr
    assert not (tmp_path / "secret").exists()


def test_an_unreadable_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """An unreadable file is one line and exit code 2; it is a link to itself, which the superuser cannot read
    either.
    """
    file = tmp_path / "loop.txt"
    file.symlink_to(file)

    code, _, stderr = run_example(tmp_path, "--input", file)

    assert code == 2
    assert stderr.count("\n") == 1
    assert str(file) in stderr


@pytest.mark.parametrize(
    "args",
    [("--parallelism", "0"), ("--repeat", "-1"), ("--jobmanager", "nowhere"), ("--output", "/no/such/folder/x.csv")],
)
def test_a_wrong_option_is_exit_code_2(tmp_path: Path, args: tuple[str, str]) -> None:
    code, _, stderr = run_example(tmp_path, *args)

    assert code == 2
    assert args[0].lstrip("-") in stderr or args[1] in stderr
    assert "Traceback" not in stderr


def test_a_jobmanager_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a")

    code, _, stderr = run_example(tmp_path, "--input", file, "--jobmanager", "127.0.0.1:1")

    assert code == 1
    assert "127.0.0.1:1" in stderr
    assert "Traceback" not in stderr


def test_control_c_ends_the_example_and_its_cluster_within_two_seconds(tmp_path: Path) -> None:
    """The TaskManager processes end with the example."""
    with start_example(tmp_path, "--repeat", "30") as process:
        process.wait_for_line("counting words: ")
        children = psutil.Process(process.pid).children(recursive=True)

        with Stopwatch(process.pid, *(child.pid for child in children)) as watch:
            code = process.interrupt(PATIENCE_S)
            alive = psutil.wait_procs(children, timeout=PATIENCE_S)[1]

        assert len(children) >= 2
        assert code == 130
        assert "Traceback" not in process.stderr
        assert alive == []
        assert watch.seconds < 2.5
