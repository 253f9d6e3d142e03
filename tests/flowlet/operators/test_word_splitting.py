from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import ConstantColumn, WordColumn
from flowlet.fusing import switch
from flowlet.operators import fused, word_splitting
from flowlet.operators.base import OperatorContext
from flowlet.operators.chain import ChainedOperator, OperatorChain
from flowlet.operators.transform import FilterOperator, FlatMapOperator, MapOperator, TransformOperator
from flowlet.records import Chunk
from tests.flowlet.operators.harness import RecordingOutput
from tests.flowlet.serde.exact import exact


class Text(str):
    """May do anything."""

    __slots__ = ()

    def split(self, *_: Any) -> list[str]:
        return ["its own"]


def upper_fields(line: str) -> Iterator[tuple[str, float]]:
    for word in line.upper().split(","):
        yield word, 0.5


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "words": lambda line: line.split(),
    "pairs": lambda line: [(word, 1) for word in line.split()],
    "fields": lambda line: line.split(" "),
    "pairs of upper fields": upper_fields,
    "lower": lambda line: line.strip().lower().split(),
}
LINES = st.text(st.sampled_from(" \t\n,aBc"), max_size=12)
ODD_LINES = LINES | LINES.map(Text) | st.sampled_from(["ß", "İ a", "a\0b", "x\u2003y"])


def chain_of(*operators: TransformOperator, fuses: bool = True, copies: bool = True) -> tuple[OperatorChain, RecordingOutput]:
    output = RecordingOutput()
    chained = [ChainedOperator(operator, index - 1, copies=copies) for index, operator in enumerate(operators)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(switch.FUSE_VARIABLE, "1" if fuses else "0")
        chain = OperatorChain(chained, {(len(chained) - 1, None): [output]}, context)
    chain.open()
    return chain, output


def context(index: int, name: str) -> OperatorContext:
    return OperatorContext("task", 1, 2, 128, name, chain_index=index)


def results(
    operators: list[TransformOperator], lines: list[Any], timestamps: list[int] | None, *, fuses: bool
) -> tuple[list[Any], list[tuple[int, int]]]:
    """Records with their timestamps, and what was counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "is_traced", lambda: False)
        patch.setattr(word_splitting, "MIN_CHARACTERS", 0)
        patch.setattr(word_splitting, "MAX_CHARACTERS", 40)
        chain, output = chain_of(*operators, fuses=fuses)
        chain.process_chunk(Chunk(lines.copy(), timestamps and timestamps.copy()))
    records = [
        (exact(value), chunk.timestamps and chunk.timestamps[index]) for chunk in output.chunks for index, value in enumerate(chunk.values)
    ]
    return records, [(each.num_records_in, each.num_records_out) for each in chain.counters().values()]


@given(
    st.sampled_from(list(FUNCTIONS)), st.lists(LINES, min_size=1, max_size=12) | st.lists(ODD_LINES, min_size=1, max_size=4), st.booleans()
)
def test_words_are_those_that_the_function_gives(name: str, lines: list[Any], is_timed: bool) -> None:
    """With their types, timestamps and counts; whatever the lines are, and in texts of any length."""
    timestamps = list(range(len(lines))) if is_timed else None
    operators: list[TransformOperator] = [FlatMapOperator(FUNCTIONS[name])]

    assert results(operators, lines, timestamps, fuses=True) == results(operators, lines, timestamps, fuses=False)


MAPS: dict[str, Callable[[Any], Any]] = {
    "to a pair": lambda record: (record, 1),
    "a field": lambda record: (record[0], "x"),
    "no field": lambda record: (2, 3),
    "called": lambda record: (str(record), 1),
}


@given(
    split=st.sampled_from(list(FUNCTIONS)),
    maps=st.lists(st.sampled_from(list(MAPS)), min_size=1, max_size=2),
    lines=st.lists(LINES.map(lambda line: f"a {line} b"), min_size=1, max_size=8),
    is_timed=st.booleans(),
)
def test_maps_behind_see_the_same_words(split: str, maps: list[str], lines: list[Any], is_timed: bool) -> None:
    """Whether they are more than a choice of fields, or not."""
    timestamps = list(range(len(lines))) if is_timed else None
    if "fields" in split:
        lines = ["a"] * len(lines)  # an empty field has no first character

    fused_results, plain_results = (
        results([FlatMapOperator(FUNCTIONS[split]), *(MapOperator(MAPS[name]) for name in maps)], lines, timestamps, fuses=fuses)
        for fuses in (True, False)
    )

    assert fused_results == plain_results


def emitted(function: Callable[[Any], Any], lines: list[Any]) -> list[Chunk]:
    chain, output = chain_of(FlatMapOperator(function))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "is_traced", lambda: False)
        chain.process_chunk(Chunk(lines))
    return output.chunks


def test_words_stay_columns() -> None:
    """The constant beside them, too."""
    (chunk,) = emitted(FUNCTIONS["pairs"], ["to be or not to be"] * 200)

    assert chunk.columns is not None
    assert list(map(type, chunk.columns.fields)) == [WordColumn, ConstantColumn]
    assert len(chunk) == 1_200


@pytest.mark.parametrize(
    "line", ["to be", "größer " * 3_000, "a\0b " * 3_000, "a " * word_splitting.MAX_CHARACTERS], ids=lambda line: line[:4]
)
def test_the_function_is_called_where_columns_would_not_do(line: str) -> None:
    """Little text, other characters, and lines of any length."""
    chunks = emitted(FUNCTIONS["words"], [line])

    assert all(chunk.columns is None for chunk in chunks)
    assert [word for chunk in chunks for word in chunk.values] == line.split()


def test_long_chunks_are_split_in_parts() -> None:
    """None of which has more words than a writer takes at once."""
    chunks = emitted(FUNCTIONS["words"], ["a b " * 1_000] * 100)

    assert len(chunks) > 1
    assert sum(map(len, chunks)) == 200_000
    assert max(map(len, chunks)) <= 49_151
    assert all(chunk.columns is not None for chunk in chunks)


def test_a_debugger_sees_the_function() -> None:
    """Then it is called."""
    chain, output = chain_of(FlatMapOperator(FUNCTIONS["words"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "is_traced", lambda: True)
        chain.process_chunk(Chunk(["to be or not to be"] * 200))

    assert all(chunk.columns is None for chunk in output.chunks)


def test_pairs_that_a_map_makes_are_columns() -> None:
    """As PyFlink's word count has it."""
    chain, output = chain_of(FlatMapOperator(FUNCTIONS["words"]), MapOperator(lambda word: (word, 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "is_traced", lambda: False)
        chain.process_chunk(Chunk(["to be or not to be"] * 200))

    (chunk,) = output.chunks
    assert chunk.columns is not None
    assert list(map(type, chunk.columns.fields)) == [WordColumn, ConstantColumn]


def test_words_for_an_operator_behind_are_the_same() -> None:
    """In one run of operators the function goes into the loop, or is called."""
    chain, output = chain_of(FlatMapOperator(FUNCTIONS["words"]), FilterOperator(lambda word: word > "b"), copies=False)

    chain.process_chunk(Chunk(["a b c d"] * 1_000))

    assert [word for chunk in output.chunks for word in chunk.values] == ["c", "d"] * 1_000
