"""The words of the word count, and what has to come out."""

from collections import Counter
from pathlib import Path

import pytest

from bench.jobs import words
from bench.jobs.checked import MarkedReader
from flowlet.records import Chunk


def lines_of(reader: MarkedReader) -> list[str]:
    chunks: list[Chunk] = []
    while (chunk := reader.poll_chunk()) is not None:
        chunks.append(chunk)
    return [line for chunk in chunks for line in chunk.values]


def test_the_words_are_the_same_every_time_and_zipf_distributed() -> None:
    lines = words.make_lines(20_000)

    drawn = " ".join(lines).split(" ")
    assert lines == words.make_lines.__wrapped__(20_000)
    assert len(drawn) == 20_000
    assert all(len(line.split(" ")) == words.WORDS_PER_LINE for line in lines)
    assert 1.8 < drawn.count("word00000") / drawn.count("word00001") < 2.2


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_both_kinds_of_source_give_the_same_lines_and_all_readers_together_every_line(
    tmp_path: Path, parallelism: int
) -> None:
    """Lines are equal even where a share ends in the middle of a chunk, or of the ready lines."""
    readers = {
        kind: [
            words.ZipfSource(tmp_path, 25_330, 7000, kind).create_reader(subtask, parallelism)
            for subtask in range(parallelism)
        ]
        for kind in words.SOURCES
    }

    lines = {kind: [lines_of(reader) for reader in of_kind] for kind, of_kind in readers.items()}

    assert lines["sliced"] == lines["produced"]
    counted = Counter(word for of_reader in lines["sliced"] for line in of_reader for word in line.split())
    assert counted == words.Job(num_words=25_330, made_words=7000).counts()
