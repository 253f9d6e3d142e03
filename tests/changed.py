"""The tests beside files that have changed since the branch left ``main``, for at most a minute: ``python -m
tests.changed [arguments of pytest]``.

A module of ``netstack`` or ``flowlet`` is tested by the folder that mirrors its package, but for the slow ones.  Tests
of modules that import it run in ``make test``.  Every quick test is chosen if no file has changed, or one that every
test needs.  What has not begun after 50 s does not begin.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
QUICK: Final = ("-m", "not slow and not long", "--stop-after=50")  # the last tests need some seconds to end
_TOP: Final = 2  # parts of a path in the root of a package, or of the tests
_NO_TESTS: Final = 5  # pytest's exit status
_PACKAGES: Final = ("flowlet", "netstack", "bench")


def changed_files(main: str = "main") -> list[str]:
    """Return the files that differ from where the branch left ``main``, and new ones; without a ``main``, from the last
    commit.
    """
    base = _git("merge-base", "HEAD", main) or ["HEAD"]
    return [*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def beside(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """The folders and files of tests; none: they are all."""
    found: set[Path] = set()
    for path in map(Path, changed):
        if path.suffix != ".py":
            continue
        if path.parts[0] == "tests":
            if len(path.parts) == _TOP and not path.name.startswith("test_"):  # every test needs it
                return []
            found.add(path if path.name.startswith("test_") else path.parent)
        elif path.parts[0] in _PACKAGES:
            folder = "tests" / path.parent
            while not (root / folder).is_dir():  # its tests lie with those of its neighbours
                folder = folder.parent
            found.add(folder / f"test_{path.name}" if len(folder.parts) == _TOP else folder)
    there = {path for path in found if (root / path).exists()}
    return sorted(str(path) for path in there if not there & set(path.parents))


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's exit status; 0 if there are only slow tests."""
    tests = beside(changed_files())
    print("the quick tests of", " ".join(tests) or "everything", flush=True)
    done = subprocess.run([sys.executable, "-m", "pytest", *QUICK, *arguments, *tests], cwd=ROOT, check=False)
    return 0 if done.returncode == _NO_TESTS else done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
