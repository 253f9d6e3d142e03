import pytest

from flowlet.task.key_routes import Detour


def detour_length(detour: Detour, limit: int = 1_000) -> int:
    """How many chunks went past the dictionary."""
    count = 0
    while detour.is_taken():
        count += 1
        assert count < limit
    return count


def test_detours_get_longer_up_to_a_bound() -> None:
    detour, lengths = Detour(), []

    for _ in range(9):
        detour.judge(1_000, 1_000, is_full=False)
        lengths.append(detour_length(detour))

    assert lengths == [4, 8, 16, 32, 64, 128, 256, 256, 256]


def test_a_good_chunk_makes_the_next_detour_short_again() -> None:
    detour = Detour()
    for _ in range(3):
        detour.judge(1_000, 1_000, is_full=False)

    detour.judge(1_600, 100, is_full=False)
    detour.judge(1_600, 101, is_full=False)

    assert repr(detour) == "<Detour for 4 chunks, the next one for 8>"


def test_few_keys_say_nothing() -> None:
    detour = Detour()

    detour.judge(255, 255, is_full=True)

    assert not detour.is_taken()


def test_a_patient_one_waits_until_the_dictionary_is_full() -> None:
    """Then every chunk is judged, until one does well."""
    detour = Detour(is_patient=True)
    detour.judge(1_000, 1_000, is_full=False)
    assert not detour.is_taken()

    detour.judge(1_000, 1_000, is_full=True)
    assert detour_length(detour) == 4
    detour.judge(1_000, 1_000, is_full=False)
    assert detour_length(detour) == 8
    detour.judge(1_000, 0, is_full=True)
    detour.judge(1_000, 1_000, is_full=False)

    assert not detour.is_taken()


@pytest.mark.parametrize("is_patient", [False, True])
def test_giving_up_ends_a_detour(is_patient: bool) -> None:
    detour = Detour(is_patient=is_patient)
    detour.judge(1_000, 1_000, is_full=True)

    detour.give_up()

    assert not detour.is_taken()
