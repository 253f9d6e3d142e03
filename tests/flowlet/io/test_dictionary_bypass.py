from flowlet.io.key_dictionary import DictionaryBypass


def bypass_length(bypass: DictionaryBypass, limit: int = 1_000) -> int:
    """How many chunks went past the dictionary."""
    count = 0
    while bypass.is_taken():
        count += 1
        assert count < limit
    return count


def test_bypasses_get_longer_up_to_a_bound() -> None:
    bypass, lengths = DictionaryBypass(), []

    for _ in range(9):
        bypass.judge(1_000, 1_000, is_full=True)
        lengths.append(bypass_length(bypass))

    assert lengths == [4, 8, 16, 32, 64, 128, 256, 256, 256]


def test_a_good_chunk_makes_the_next_bypass_short_again() -> None:
    bypass = DictionaryBypass()
    for _ in range(3):
        bypass.judge(1_000, 1_000, is_full=True)

    bypass.judge(1_600, 100, is_full=True)
    bypass.judge(1_600, 101, is_full=True)

    assert bypass_length(bypass) == 4, "as long as the first one"


def test_few_keys_say_nothing() -> None:
    bypass = DictionaryBypass()

    bypass.judge(255, 255, is_full=True)

    assert not bypass.is_taken()


def test_it_waits_until_the_dictionary_is_full() -> None:
    """Every chunk is judged then, until one does well."""
    bypass = DictionaryBypass()
    bypass.judge(1_000, 1_000, is_full=False)
    assert not bypass.is_taken()

    bypass.judge(1_000, 1_000, is_full=True)
    assert bypass_length(bypass) == 4
    bypass.judge(1_000, 1_000, is_full=False)
    assert bypass_length(bypass) == 8
    bypass.judge(1_000, 0, is_full=True)
    bypass.judge(1_000, 1_000, is_full=False)

    assert not bypass.is_taken()
