"""ids.py: UUIDv7, in order within a process, whatever the clock does."""

import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay import ids
from backstay.errors import InvalidOption
from backstay.ids import canonical, derived, new_id, new_ids

NOW = 1_700_000_000_000_000
instants = st.integers(0, 2**47 * 1000)


def test_an_id_is_a_valid_uuid_of_version_7() -> None:
    for job_id in (*new_ids(5_000, NOW), new_id(NOW)):
        parsed = uuid.UUID(job_id)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, job_id)


def test_an_id_carries_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last", 0)  # whatever time other tests have been in

    assert uuid.UUID(new_id(NOW)).int >> 80 == NOW // 1000


def test_ids_of_one_moment_are_ordered_and_unique() -> None:
    ids = new_ids(20_000, NOW)

    assert ids == sorted(set(ids))


@given(st.lists(instants, min_size=2, max_size=20))
def test_ids_ascend_even_when_the_clock_goes_back(moments: list[int]) -> None:
    ids = [new_id(moment) for moment in moments]

    assert ids == sorted(set(ids))


def test_ids_from_several_threads_are_unique() -> None:
    made: list[list[str]] = []
    threads = [threading.Thread(target=lambda: made.append(new_ids(2_000, NOW))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    everything = [job_id for ids in made for job_id in ids]
    assert len(set(everything)) == 8_000
    assert all(ids == sorted(ids) for ids in made)


def test_no_ids_are_made_for_nothing() -> None:
    assert new_ids(0, NOW) == []


def test_an_id_has_one_spelling() -> None:
    job_id = new_id(NOW)

    for spelling in (job_id, job_id.upper(), job_id.replace("-", ""), f"{{{job_id}}}", uuid.UUID(job_id)):
        assert canonical(spelling) == job_id


@pytest.mark.parametrize("wrong", ["", "1", "x" * 36, "../../etc/passwd", "\0" * 36, None, 7, "é" * 4000])
def test_what_is_no_uuid_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidOption, match="UUID"):
        canonical(wrong)  # type: ignore[arg-type]


def test_a_derived_id_is_the_same_whenever_it_is_asked_for_and_bears_its_parents_time() -> None:
    parent, other = new_ids(2, NOW)
    names = [f"job|embed|{n}|null" for n in range(2_000)]

    made = [derived(parent, name) for name in names]

    assert made == [derived(parent, name) for name in names]
    assert len({*made, *(derived(other, name) for name in names)}) == 4_000
    for job_id in made:
        parsed = uuid.UUID(job_id)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, job_id)
        assert parsed.int >> 80 == uuid.UUID(parent).int >> 80
