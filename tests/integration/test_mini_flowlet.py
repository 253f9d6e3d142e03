"""The engine in 300 lines does what its header says: credits hold the source, a barrier cuts, a restart is exact."""

import importlib.util
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tests.waiting import PATIENCE_S

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mini_flowlet.py"
WORDS = [f"word {number % 7}" for number in range(1_003)]


@pytest.fixture(scope="module")
def mini() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mini_flowlet", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Permits:
    """Lets the consumer count as many words as the test wants; ``stands_still``: it wants more."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self.stands_still = threading.Event()

    def __call__(self, word: str) -> None:
        if not self._permits.acquire(blocking=False):
            self.stands_still.set()
            assert self._permits.acquire(timeout=PATIENCE_S)

    def give(self, num_words: int) -> None:
        self.stands_still.clear()
        self._permits.release(num_words)


def test_a_slow_consumer_holds_its_producer_by_credit(mini: ModuleType) -> None:
    """The source reads only words that fit into the receiver's buffers and its own."""
    permits = Permits()
    job = mini.Job(WORDS, mini.Coordinator(), permits)

    assert job.sender.is_held.wait(PATIENCE_S)

    num_buffers = mini.INITIAL_CREDIT + mini.NUM_BUFFERS
    assert (job.source.position, job.sender.credit) == (num_buffers * mini.BUFFER_RECORDS, 0)

    permits.give(mini.BUFFER_RECORDS)  # one buffer, one credit, one buffer more from the source
    assert permits.stands_still.wait(PATIENCE_S)
    permits.give(len(WORDS))
    assert job.close() == Counter(WORDS)


def test_a_barrier_cuts_the_stream_between_the_same_two_words_in_both_tasks(mini: ModuleType) -> None:
    """The counts have exactly the words that the source had read, however many were in flight when the checkpoint
    began.
    """
    permits = Permits()
    job = mini.Job(WORDS, mini.Coordinator(), permits)
    assert job.sender.is_held.wait(PATIENCE_S)

    cut = job.checkpoint(1)
    assert not cut.done()
    permits.give(len(WORDS))

    checkpoint = cut.result(PATIENCE_S)
    assert checkpoint.counts == Counter(WORDS[: checkpoint.position])
    assert 0 < checkpoint.position < len(WORDS)
    job.close()


def test_a_restart_behind_the_last_checkpoint_counts_each_word_once(mini: ModuleType) -> None:
    """The words that the killed attempt had counted behind the checkpoint are counted again, in the old counts."""
    permits, coordinator = Permits(), mini.Coordinator()
    job = mini.Job(WORDS, coordinator, permits)
    assert job.sender.is_held.wait(PATIENCE_S)
    cut = job.checkpoint(1)
    permits.give(100)
    kept = cut.result(PATIENCE_S)
    assert permits.stands_still.wait(PATIENCE_S)

    job.counter.kill()
    job.source.kill()
    permits.give(mini.BUFFER_RECORDS)
    lost = job.close()
    assert isinstance(job.counter.error, mini.KilledError)
    assert kept.position < lost.total() < len(WORDS)

    again = mini.Job(WORDS, coordinator, lambda _: None)

    assert again.close() == Counter(WORDS)


def test_it_tells_what_it_shows() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )

    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].endswith("exactly what the words are.")
    assert len(EXAMPLE.read_text().split("\n")) < 420  # it teaches as long as one can read it in one go
