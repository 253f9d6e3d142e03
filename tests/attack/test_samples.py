"""One small attack of each class, for every run of the tests; ``make attack`` runs them all, and larger."""

from typing import Final

import pytest

from tests.attack.arena import Arena
from tests.attack.test_crowds import DATA_KINDS, crowd_attack
from tests.attack.test_deaths import kill_producers
from tests.attack.test_hostile_producers import CODE, attack_gate
from tests.attack.test_links import FAULTS, break_links
from tests.attack.test_misdeeds import MISDEEDS, commit, settings_of
from tests.attack.test_strangers import forge_requests, fuzz_before_handshake

pytestmark = [pytest.mark.slow, pytest.mark.long]
IS_ROUTED: Final = True
__all__ = ["settings_of"]  # of the cluster


def test_a_crowd_that_says_half_a_frame(arena: Arena) -> None:
    crowd_attack(arena, "data", DATA_KINDS[1], 60)


def test_garbage_from_strangers(arena: Arena) -> None:
    fuzz_before_handshake(arena, 800)


def test_forged_requests(arena: Arena) -> None:
    forge_requests(arena)


def test_code_of_a_producer(arena: Arena) -> None:
    attack_gate(arena, "code", "pair", lambda name: name.startswith(CODE))


def test_a_misdeed(arena: Arena) -> None:
    [misdeed] = [each for each in MISDEEDS if each.name == "keyboard_interrupt"]
    commit(arena, misdeed)


def test_a_link_that_is_reset(arena: Arena) -> None:
    [fault] = [each for each in FAULTS if each.name == "is reset"]
    break_links(arena, "data", fault)


def test_a_producer_that_is_killed(arena: Arena) -> None:
    kill_producers(arena, 1)
