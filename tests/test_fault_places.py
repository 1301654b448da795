"""Which tensor an address is of, against a model that looks at every byte; and the guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gpumem_alloc import _C
from gpumem_alloc.isolation.candidates import candidates
from gpumem_alloc.isolation.ledger_file import Entry, LedgerFile
from gpumem_alloc.isolation.places import (
    LIVE,
    QUARANTINED,
    distance_of,
    end_of,
    nearest,
    place_of,
)

PAGE = 64  # stands for the granularity of mapping; guards are one each
ALIGNMENT = 16
BASE = 0x10000
PACKED, TENSOR, STRICT = (
    _C.isolation_levels().index(name) for name in ("packed", "tensor", "strict")
)
TENSORS = st.lists(
    st.tuples(
        st.integers(0, 3 * PAGE),  # bytes
        st.integers(0, 2),  # pages that nobody has, in front of the window
        st.sampled_from([LIVE, QUARANTINED]),
    ),
    min_size=1,
    max_size=3,
)


class Byte(NamedTuple):
    """What the model knows of one byte."""

    number: int
    relation: str
    distance: int
    in_guard: bool


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def lay_out(
    tensors: list[tuple[int, int, int]], guard: str
) -> tuple[list[Entry], dict[int, Byte], int]:
    """Windows one after the other: the ledger's entries, every byte of them, and the end."""
    entries, known, at = [], {}, BASE
    for number, (size, skipped, state) in enumerate(tensors, 1):
        at += skipped * PAGE
        block = round_up(max(size, 1), ALIGNMENT)
        pages = range(at + PAGE, at + PAGE + round_up(block, PAGE))
        first = pages.start if guard == "lower" else pages.stop - block
        window = range(at, pages.stop + PAGE)
        for byte in window:
            if first <= byte < first + size:
                where = ("inside", byte - first)
            elif byte >= first + size:
                where = ("behind", byte - first - size)
            else:
                where = ("before", first - byte)
            known[byte] = Byte(number, *where, byte not in pages)
        freed = number if state == QUARANTINED else 0
        entries.append(
            Entry(0, first, size, at, window.stop, 0, number, freed, number, freed, state, STRICT)
        )
        at = window.stop
    return entries, known, at


@given(TENSORS, st.sampled_from(["upper", "lower"]))
def test_every_byte_is_what_the_model_says(tensors: list[tuple[int, int, int]], guard: str) -> None:
    entries, known, end = lay_out(tensors, guard)
    options = {"guard": guard, "guard_alignment": ALIGNMENT}
    for address in range(BASE - 3, end + 3):
        place = place_of(address, 1, entries, options)
        if address not in known:
            assert (place.relation, place.entry) == ("foreign", None)
            continue
        assert place.entry is not None
        assert place.least_distance == place.most_distance
        seen = Byte(
            place.entry.allocation_number, place.relation, place.least_distance, place.in_guard
        )
        assert seen == known[address], hex(address)


@given(TENSORS, st.sampled_from(["upper", "lower"]))
def test_a_page_is_what_its_bytes_are(tensors: list[tuple[int, int, int]], guard: str) -> None:
    entries, known, end = lay_out(tensors, guard)
    options = {"guard": guard, "guard_alignment": ALIGNMENT}
    for address in range(BASE, end, PAGE):
        owned = [known[byte] for byte in range(address, address + PAGE) if byte in known]
        place = place_of(address, PAGE, entries, options)
        if not owned:
            assert place.relation == "foreign"
            continue
        relations = {byte.relation for byte in owned}
        relation = "inside" if "inside" in relations else owned[0].relation
        if len(relations) == 2 and "inside" not in relations:
            continue  # an empty tensor in the middle of a page: either side will do
        distances = [byte.distance for byte in owned if byte.relation == relation]
        assert place.relation == relation
        assert (place.least_distance, place.most_distance) == (min(distances), max(distances))
        assert place.in_guard == all(byte.in_guard for byte in owned)


@given(TENSORS, st.integers(BASE - 200, BASE + 2000))
def test_the_nearest_are_the_nearest(tensors: list[tuple[int, int, int]], address: int) -> None:
    entries, _, _ = lay_out(tensors, "upper")

    def away(entry: Entry) -> int:
        bytes_of_it = range(entry.address, end_of(entry)) or [entry.address - 1, entry.address]
        return min(abs(address - byte) for byte in bytes_of_it)

    found = nearest(address, 1, entries, count=2)
    assert [away(entry) for entry in found] == sorted(map(away, entries))[: len(found)]
    for entry in found:
        relation, distance = distance_of(entry, address)
        if entry.requested_bytes > 0:
            expected = {"inside": 0, "before": distance, "behind": distance + 1}
            assert away(entry) == expected[relation]


def test_who_has_an_address_now_goes_before_who_had_it() -> None:
    old = Entry(0, 0x1000, 64, 0x1000, 0x1080, 0, 1, 1, 10, 20, QUARANTINED, PACKED)
    newer = Entry(0, 0x1040, 64, 0x1040, 0x1100, 0, 2, 2, 30, 40, QUARANTINED, PACKED)
    live = Entry(0, 0x1000, 32, 0x1000, 0x1100, 0, 3, 0, 50, 0, LIVE, PACKED)
    place = place_of(0x1050, 1, [old, newer, live], {"guard": "upper", "guard_alignment": 512})
    assert (place.entry, place.relation, place.least_distance) == (live, "behind", 0x30)
    assert place.earlier == [newer, old]
    assert not place.in_guard  # there are none


def ledger_of(
    entries: list[Entry], violations: Sequence[dict[str, Any]] = (), **options: Any
) -> LedgerFile:
    all_options = {"guard": "upper", "guard_alignment": 512, **options}
    return LedgerFile(
        Path("ledger.json"), 1, 0, [], "", "strict", all_options, None, {}, entries,
        list(violations), {},
    )  # fmt: skip


SECOND = 1_000_000_000
FREED = [
    Entry(0, n << 24, 1000, (n << 24) - 64, (n << 24) + 2048, 0, n, n, SECOND, SECOND * (10 + n),
          QUARANTINED, STRICT)
    for n in (1, 2, 3)
]  # fmt: skip
LIVE_ONES = [
    replace(FREED[0], address=n << 24, allocation_number=n, free_number=0, freed_at_ns=0,
            allocated_at_ns=SECOND * n, state=LIVE, requested_bytes=size)
    for n, size in ((4, 1000), (5, 1024), (6, 1000))
]  # fmt: skip


def weights(ledger: LedgerFile) -> dict[int, float]:
    return {one.entry.allocation_number: round(one.weight, 3) for one in candidates(ledger)}


def test_the_weights_of_guesses_are_those_of_the_docstring() -> None:
    found = candidates(ledger_of([*LIVE_ONES, *FREED]))
    assert [one.entry.allocation_number for one in found] == [3, 5, 6, 2, 1, 4]
    assert weights(ledger_of([*LIVE_ONES, *FREED])) == {
        3: 5.0, 5: 3.5, 6: 3.0, 2: 2.5, 1: 1.667, 4: 1.0,
    }  # fmt: skip
    assert all(one.reasons for one in found)
    # Every live tensor touches the lower guard.
    assert weights(ledger_of(LIVE_ONES, guard="lower")) == {6: 5.0, 5: 3.5, 4: 3.0}


def test_what_a_violation_names_goes_first() -> None:
    named = {"device": 0, "allocation_number": 4, "kind": "overrun"}
    found = candidates(ledger_of([*LIVE_ONES, *FREED], [named]))
    assert (found[0].entry.allocation_number, found[0].weight) == (4, 9.0)
    assert found[0].reasons[0] == "a violation names it: overrun"


def test_another_stream_and_a_free_that_did_not_wait_add_to_it() -> None:
    near = replace(LIVE_ONES[0], stream=7, allocated_at_ns=FREED[0].freed_at_ns + 99_000_000)
    far = replace(near, allocated_at_ns=FREED[0].freed_at_ns + 101_000_000)
    assert weights(ledger_of([FREED[0], near]))[1] == 7.0
    assert weights(ledger_of([FREED[0], far]))[1] == 5.0
    assert weights(ledger_of([FREED[0], replace(near, device=1)]))[1] == 5.0
    assert weights(ledger_of([replace(FREED[0], level=TENSOR)]))[1] == 6.0


def test_packed_tensors_are_no_likely_ones() -> None:
    packed = [replace(one, level=PACKED) for one in (*FREED, *LIVE_ONES)]
    assert weights(ledger_of(packed)) == {6: 1.0, 5: 0.5, 4: 0.333}
