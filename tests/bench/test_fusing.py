import pytest

from bench import fusing


@pytest.mark.parametrize("name", fusing.CHAINS)
@pytest.mark.parametrize("copies", [True, False])
def test_both_ways_of_a_chain_give_the_same(name: str, copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case checks it itself, before it measures."""
    monkeypatch.setattr(fusing, "CHUNKS_PER_TURN", 1)
    monkeypatch.setattr(fusing, "TURNS_PER_RUN", 1)
    chain = fusing.CHAINS[name]

    fused, operators = fusing._results(name, chain, 1, copies=copies)

    assert fused.runs[0] > 0
    assert operators.runs[0] > 0
