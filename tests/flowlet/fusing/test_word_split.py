import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.fusing.word_split import WordSplit, word_split

WORDS = WordSplit(None, (), ())
PAIRS = WordSplit(None, (), (1,))


class Splitter:
    def flat_map(self, line: str) -> list[str]:
        return line.split()

    def pairs(self, line: str) -> Iterator[tuple[str, int]]:
        for word in line.split():
            yield word, 1


def yields_from(line: str) -> Iterator[str]:
    """Has a docstring."""
    yield from line.split()


def yields_words(text: str) -> Iterator[str]:
    for part in text.split():  # noqa: UP028 - another form
        yield part


def appends(line: str) -> list[tuple[str, int]]:
    found = []
    for word in line.split():
        found.append((word, 1))
    return found


def yields_fields(line: str) -> Iterator[tuple[str, str]]:
    for word in line.upper().split("|"):
        yield (word, "n")


KNOWN: dict[str, tuple[Callable[[Any], Any], WordSplit]] = {
    "words": (lambda line: line.split(), WORDS),
    "a list of words": (lambda line: [word for word in line.split()], WORDS),  # noqa: C416 - another form
    "a generator function": (yields_words, WORDS),
    "a generator that gives a list's items": (yields_from, WORDS),
    "a method": (Splitter().flat_map, WORDS),
    "pairs": (lambda line: [(word, 1) for word in line.split()], PAIRS),
    "pairs of a generator": (lambda line: ((word, 1) for word in line.split()), PAIRS),
    "pairs of a method": (Splitter().pairs, PAIRS),
    "pairs that are appended": (appends, PAIRS),
    "pairs with another constant": (lambda line: [(word, -0.5) for word in line.split()], WordSplit(None, (), (-0.5,))),
    "pairs with a truth value": (lambda line: [(word, True) for word in line.split()], WordSplit(None, (), (True,))),
    "lower case": (lambda line: line.strip().lower().split(), WordSplit(None, ("lower",), ())),
    "fields": (lambda line: line.split(","), WordSplit(",", (), ())),
    "all together": (yields_fields, WordSplit("|", ("upper",), ("n",))),
}


@pytest.mark.parametrize("name", KNOWN)
def test_functions_that_split_lines_are_recognised(name: str) -> None:
    """However they are written."""
    function, expected = KNOWN[name]

    found = word_split(function)

    assert found == expected
    assert found is not None
    assert list(map(type, found.other)) == list(map(type, expected.other))


def adds_first(line: str) -> Iterator[str]:
    yield line
    yield from line.split()


def counts(line: str) -> Iterator[tuple[str, int]]:
    number = 1
    for word in line.split():
        yield word, number


def catches(line: str) -> list[str]:
    try:
        return line.split()
    except AttributeError:
        return []


async def waits(line: str) -> list[str]:
    return line.split()


def captures(line: str) -> list[Any]:
    return [(word, 1) for word in line.split() if (lambda: line)()]


number_of_words = 1
OTHERS: dict[str, Callable[..., Any]] = {
    "no function": "".split,
    "a built-in function": str.split,
    "two arguments": lambda line, other: line.split(),
    "a default": lambda line, other=None: line.split(),
    "any number of arguments": lambda *line: line.split(),  # type: ignore[attr-defined]
    "a limit": lambda line: line.split(",", 1),
    "a separator by name": lambda line: line.split(sep=","),
    "a separator of two characters": lambda line: line.split(", "),
    "a separator that is not ASCII": lambda line: line.split("\xa0"),
    "an empty separator": lambda line: line.split(""),
    "a separator that is no text": lambda line: line.split(b","),
    "a NUL as separator": lambda line: line.split("\0"),
    "a separator that has another case": lambda line: line.lower().split("A"),
    "fields of a stripped line": lambda line: line.strip().split(","),
    "stripped of more than white space": lambda line: line.strip("x").split(),
    "split from the right": lambda line: line.rsplit(),
    "lines": lambda line: line.splitlines(),
    "another method first": lambda line: line.title().split(),
    "a condition": lambda line: [word for word in line.split() if word],
    "a method of each word": lambda line: [(word.lower(), 1) for word in line.split()],
    "the constant first": lambda line: [(1, word) for word in line.split()],
    "the line beside the word": lambda line: [(word, line) for word in line.split()],
    "the word twice": lambda line: [(word, word) for word in line.split()],
    "the line's pairs": lambda line: [(line, 1) for word in line.split()],
    "three fields": lambda line: [(word, 1, 2) for word in line.split()],
    "lists": lambda line: [[word, 1] for word in line.split()],
    "a set": lambda line: {word for word in line.split()},  # noqa: C416 - another form
    "a global constant": lambda line: [(word, number_of_words) for word in line.split()],
    "a constant that is no literal": lambda line: [(word, (1, 2)) for word in line.split()],
    "None": lambda line: [(word, None) for word in line.split()],
    "an expression": lambda line: re.findall("[a-z]+", line),
    "more words": adds_first,
    "a variable": counts,
    "an error that is caught": catches,
    "a coroutine": waits,
    "a line that is captured": captures,
    "words of another text": lambda line: ["a", "b"],
    "a word of the words": lambda line: line.split()[0],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_are_not(name: str) -> None:
    """Whatever is not sure is called."""
    assert word_split(OTHERS[name]) is None
