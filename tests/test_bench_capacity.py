"""Finding the largest size that runs, and filling a card."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.passes import capacity, no_margin
from benchmarks.passes.bisection import Try, bracket, is_complete, is_narrow, next_size, size_for
from benchmarks.passes.capacity_study import Study
from benchmarks.workers import ballast
from benchmarks.workers.ballast import PAGE_BYTES, BallastError, Filler, Left
from benchmarks.workers.job import Job, Row
from benchmarks.workloads import Sized
from tests.rig.machine import Machine

GIB = 1 << 30
SIZED = Sized("things", lambda torch, size, steps, mark: None, smallest=4, steps=3)


# --- which size is next -----------------------------------------------------------------------


def search(fits: Callable[[int], bool], smallest: int = 1, **options: Any) -> list[Try]:
    tries: list[Try] = []
    while (size := next_size(tries, smallest=smallest, **options)) is not None:
        assert size >= smallest
        assert size not in [each.size for each in tries]
        tries.append(Try(size, fits(size)))
    return tries


SIZES = st.integers(1, 10**6)


@given(limit=st.integers(0, 10**6), hints=st.lists(SIZES, max_size=2), expected=SIZES | st.none())
def test_every_threshold_is_found_to_the_resolution(
    limit: int, hints: list[int], expected: int | None
) -> None:
    tries = search(lambda size: size <= limit, hints=hints, expected=expected, most_tries=200)
    low, high = bracket(tries)
    assert is_complete(tries, 1)
    assert high is not None
    if low is None:
        assert (limit, high) == (0, 1)
    else:
        assert low <= limit < high
        assert high - low <= max(1, 0.02 * low)


@given(hint=st.integers(20, 10**6), percent=st.floats(-12, 12), reach=st.floats(0, 2))
def test_few_tries_are_needed_near_an_earlier_answer(
    hint: int, percent: float, reach: float
) -> None:
    limit = round(hint * (1 + percent / 100))
    hints = (hint, hint + max(1, int(hint * reach / 100)))
    tries = search(lambda size: size <= limit, hints=hints)
    assert is_complete(tries, 1), tries
    if hints[0] <= limit < hints[1]:
        assert len(tries) == 2


def test_a_search_ends_at_the_smallest_size() -> None:
    tries = search(lambda size: size <= 80, smallest=90, hints=(100,))
    assert [each.size for each in tries] == [100, 96, 90]
    assert bracket(tries) == (None, 90)
    assert is_complete(tries, 90)


def test_without_any_knowledge_sizes_grow_fast() -> None:
    tries = search(lambda size: size <= 3000, smallest=4, most_tries=99)
    assert [each.size for each in tries][:6] == [4, 16, 64, 256, 1024, 4096]
    assert len(tries) <= 13
    assert is_complete(tries, 4)


@given(
    st.randoms(use_true_random=False), st.lists(SIZES, max_size=3), SIZES | st.none(),
    st.integers(1, 12),
)  # fmt: skip
def test_nothing_is_claimed_beyond_a_failure(
    random: Any, hints: list[int], expected: int | None, most: int
) -> None:
    tries = search(
        lambda size: bool(random.random() < 0.5), hints=hints, expected=expected, most_tries=most
    )
    assert len(tries) <= most
    low, high = bracket(tries)
    assert high is None or not any(each.fits for each in tries if each.size == high)
    if low is not None:
        assert all(each.fits for each in tries if each.size <= low)
    elif any(each.fits for each in tries):
        assert min(tries, key=lambda each: each.size).size == high


def test_a_size_that_fits_above_one_that_failed_proves_nothing() -> None:
    tries = [Try(100, True), Try(90, False), Try(95, True)]
    assert bracket(tries) == (None, 90)
    assert bracket([*tries, Try(80, True)]) == (80, 90)
    assert not is_complete(tries, 1)
    assert is_complete(tries, 90)
    assert is_narrow(100, 102)
    assert not is_narrow(100, 103)
    assert is_narrow(3, 4)


@pytest.mark.parametrize("share", [0.3, 0.4, 0.5, 0.6, 0.7])
def test_one_that_holds_much_less_is_found_too(share: float) -> None:
    tries = search(lambda size: size <= 300 * share, hints=(300, 306))
    assert is_complete(tries, 1), tries


def test_steps_grow_where_nothing_stops_them() -> None:
    tries = search(lambda size: True, expected=8, most_tries=8)
    assert [each.size for each in tries] == [1, 8, 9, 11, 14, 18, 24, 32]


def test_neighbours_do_not_say_how_live_bytes_grow() -> None:
    known = [(4, 400), (60, 6000), (98, 9900), (99, 9850), (100, 10050)]
    assert size_for(known, 30_000) == pytest.approx(300, rel=0.05)


@pytest.mark.parametrize("curvature", [0.0, 0.5])
def test_live_bytes_of_small_sizes_tell_where_the_answer_lies(curvature: float) -> None:
    def live(size: int) -> int:
        return int(3 * GIB + size * 50e6 + curvature * 1e5 * size * size)

    assert size_for([], 24 * GIB) is None
    known = [(size, live(size)) for size in (4, 32, 100)]
    found = size_for(known, 24 * GIB)
    assert found is not None
    assert live(found) <= 24 * GIB < live(found + 1)
    assert (size_for(known[:1], 24 * GIB) or 0) < found  # it takes what is constant for growing
    assert size_for([(4, 100), (8, 100)], 24 * GIB) is None


# --- one workload under one limit -------------------------------------------------------------


def live_of(size: int) -> int:
    return 2 * GIB + size * (100 << 20)


class FakeWorkers:
    """Runs whose need of memory is live times a factor of the allocator, and a base."""

    def __init__(self, factors: dict[str, float], limit_bytes: int) -> None:
        self.factors = factors
        self.limit_bytes = limit_bytes
        self.jobs: list[Job] = []
        self.following: list[list[Job]] = []
        self.answer: Callable[[Job], Row | None] = lambda job: None

    def run(self, job: Job, seconds: float, following: Iterable[Job] = ()) -> Row:
        self.jobs.append(job)
        self.following.append(list(following))
        if (answer := self.answer(job)) is not None:
            return job.row() | answer
        assert job.size is not None
        live = live_of(job.size)
        if GIB // 2 + live * self.factors[job.allocator] > self.limit_bytes:
            return job.row() | {"error": "OutOfMemoryError: 1 GiB", "out_of_memory": True}
        return job.row() | {"live_peak_bytes": live}

    def sizes(self, allocator: str) -> list[int]:
        return [job.size or 0 for job in self.jobs if job.allocator == allocator]


class FakeRoom:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def leave(self, free_bytes: int) -> Left:
        self.asked.append(free_bytes)
        return Left(free_bytes - 512, 7 * GIB)


def made(*allocators: str, limit_gb: int | None = 24) -> Study:
    return Study("w", SIZED, allocators, limit_gb)


def rows_of(study: Study, workers: Any, **options: Any) -> list[Row]:
    return list(capacity.measure(study, FakeRoom(), workers, **options))


def test_each_allocators_capacity_is_found_in_few_tries() -> None:
    factors = {"paged": 1.02, "expandable": 1.04, "native": 1.2}
    workers = FakeWorkers(factors, 24 * GIB)
    rows = rows_of(made(*factors), workers)
    assert [row["allocator"] for row in rows] == list(factors)
    for row in rows:
        best = next(size for size in range(1, 999) if live_of(size + 1) * factors[row["allocator"]]
                    > 23.5 * GIB)  # fmt: skip
        assert row["complete"]
        assert row["size"] <= best < row["fails_at"]
        assert is_narrow(row["size"], row["fails_at"])
        assert row["unit"] == "things"
        assert row["live_peak_bytes"] == live_of(row["size"])
        assert row["tries"][0]["left_bytes"] == 24 * GIB - 512
        errors = {each["error"] for each in row["tries"] if not each["fits"]}
        assert errors == {"OutOfMemoryError: 1 GiB"}
    assert [len(row["tries"]) <= most for row, most in zip(rows, (6, 4, 8), strict=True)] == [
        True
    ] * 3
    for name in ("expandable", "native"):  # they begin where the best one so far has ended
        assert workers.sizes(name)[0] == rows[0]["size"]
    assert all(job.card is False and job.steps is None for job in workers.jobs)
    json.dumps(rows)


def test_equal_allocators_are_compared_at_the_same_sizes() -> None:
    first, second = rows_of(made("a", "b"), FakeWorkers({"a": 1.1, "b": 1.1}, 24 * GIB))
    assert len(second["tries"]) == 2
    assert (first["size"], first["fails_at"]) == (second["size"], second["fails_at"])


def test_an_allocator_that_tells_no_live_bytes_is_searched_too() -> None:
    workers = FakeWorkers({"a": 1.02}, 24 * GIB)
    find = workers.run
    study = made("a")
    workers.run = lambda *job: find(*job) | {"live_peak_bytes": None}  # type: ignore[method-assign]
    (row,) = rows_of(study, workers)
    assert row["complete"]
    assert len(row["tries"]) > 8  # the first one may take more
    assert row["live_peak_bytes"] is None


def test_another_limit_starts_from_what_is_known() -> None:
    small = rows_of(made("a"), FakeWorkers({"a": 1.02}, 24 * GIB))
    study = made("a", "b", limit_gb=80)
    study.learn(small)
    workers = FakeWorkers({"a": 1.02, "b": 1.02}, 80 * GIB)
    large = rows_of(study, workers)
    assert len(large[0]["tries"]) <= 4
    assert large[0]["size"] > 3 * small[0]["size"]
    again = made("a", "b", limit_gb=80)
    again.learn(large[:1])
    assert [row["allocator"] for row in rows_of(again, workers)] == ["b"]


def test_under_another_limit_each_begins_where_it_ended_before() -> None:
    factors = {"paged": 1.02, "native": 1.6, "expandable": 1.1}
    rows = rows_of(made(*factors), FakeWorkers(factors, 24 * GIB))
    for limit_gb, most in ((40, 12), (80, 10)):
        study = made(*factors, limit_gb=limit_gb)
        study.learn(rows)
        rows += rows_of(study, FakeWorkers(factors, limit_gb * GIB))
        assert all(row["complete"] for row in rows)
        assert sum(len(row["tries"]) for row in rows[-3:]) <= most


def test_where_not_even_the_smallest_fits_there_is_no_size() -> None:
    (row,) = rows_of(made("a"), FakeWorkers({"a": 99.0}, 24 * GIB))
    assert (row["size"], row["fails_at"], row["complete"]) == (None, 4, True)
    assert row["live_peak_bytes"] is None


def test_another_error_ends_the_search_and_is_told() -> None:
    workers = FakeWorkers({"a": 1.02, "b": 1.02}, 24 * GIB)
    boom = "boom" * 99
    workers.answer = lambda job: {"error": boom} if len(workers.jobs) == 2 else None
    first, second = rows_of(made("a", "b"), workers)
    assert first["error"] == boom
    assert first["tries"][-1]["error"] == boom[:120]  # the whole text is in the file once
    assert (first["size"], first["complete"], len(first["tries"])) == (4, False, 2)
    assert "error" not in second
    assert second["complete"]


@pytest.mark.parametrize(
    ("row", "lacked"),
    [
        ({"error": "x", "out_of_memory": True}, True),
        ({"error": "Expected mha_graph.execute(handle) to be true"}, True),
        ({"error": "RuntimeError: GET was unable to find an engine to execute this"}, True),
        ({"error": "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate"}, True),
        ({"error": "no end after 240 s", "out_of_memory": False}, False),
        ({}, False),
    ],
)
def test_libraries_that_get_no_memory_count_as_a_size_that_does_not_fit(
    row: Row, lacked: bool
) -> None:
    assert capacity.lacked_memory(row) is lacked


def test_without_time_the_search_says_that_it_is_not_over() -> None:
    workers = FakeWorkers({"a": 1.02, "b": 1.02}, 24 * GIB)
    left = iter([9.0, 9.0, 9.0, 9.0, -1.0])
    told: list[Row] = []
    (row,) = rows_of(made("a", "b"), workers, seconds_left=lambda: next(left), told=told.append)
    assert not row["complete"]
    assert len(row["tries"]) == 2
    assert [len(each["tries"]) for each in told] == [1, 2]
    # A run that is ended because the time is over is no failure of the size.
    study = made("a")
    workers.answer = lambda job: {"error": "no end after 0 s", "out_of_memory": False}
    assert rows_of(study, workers, seconds_left=lambda: 1e-9) == []
    assert study.errors == {}


def test_the_whole_card_needs_no_ballast() -> None:
    workers = FakeWorkers({"a": 1.02}, 140 * GIB)
    room = FakeRoom()
    (row,) = capacity.measure(made("a", limit_gb=None), room, workers)  # type: ignore[arg-type]
    assert room.asked == []
    assert row["limit_gb"] is None
    assert live_of(row["size"]) * 1.02 < 140 * GIB


def test_how_much_more_is_stated_with_what_is_certain() -> None:
    mine, other = {"size": 120, "fails_at": 122}, {"size": 100, "fails_at": 102}
    more = capacity.gain(mine, other)
    assert more is not None
    assert more.found == pytest.approx(0.2)
    assert more.least == pytest.approx(120 / 101 - 1)
    assert more.most == pytest.approx(121 / 100 - 1)
    unknown = capacity.gain({"size": 5, "fails_at": None}, {"size": 4, "fails_at": None})
    assert unknown == capacity.Gain(0.25, None, None)
    assert capacity.gain({"size": None}, other) is None


def test_a_workload_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"conv has no size to search for; these have: .*gnn"):
        capacity.study("conv", ("native",), 24)
    assert capacity.study("gnn", ("native",), 24).sized.unit


@pytest.mark.torch
def test_real_processes_are_searched(rig: Machine, root: Any) -> None:
    done = rig.run_fresh(
        f"""
        import json, sys
        sys.path.insert(0, {str(root)!r})
        from benchmarks.passes import capacity

        study = capacity.study("kv", ("paged",), None)
        study.most_tries = 2
        study.learn([
            {{"kind": "capacity", "workload": "kv", "allocator": "native", "limit_gb": None,
              "tries": [{{"size": 8, "fits": True}}, {{"size": 60, "fits": False}}]}}
        ])
        with capacity.Workers(ahead=1) as workers:
            print(json.dumps(list(capacity.measure(study, None, workers))))
        """,
        env={"RIG_CAPACITY_MB": "1024"},
    )
    (row,) = json.loads(done.stdout)
    assert (row["size"], row["fails_at"], row["complete"]) == (8, 60, False), row
    assert 500 << 20 < row["live_peak_bytes"] < 1 << 30
    assert "out of memory" in row["tries"][1]["error"]


# --- workers started ahead --------------------------------------------------------------------


class FakeProcess:
    alive: list[FakeProcess] = []  # noqa: RUF012 (emptied by each test)

    def __init__(self, job: Job) -> None:
        self.job = job
        self.went = False
        self.alive.append(self)

    def wait_ready(self, seconds: float) -> bool:
        return True

    def resize(self, size: int) -> None:
        assert not self.went
        self.job = replace(self.job, size=size)

    def go(self) -> None:
        self.went = True

    def finish(self, seconds: float) -> Row:
        assert len(self.alive) <= 5  # this one, and two for each allocator that may be next
        self.kill()
        fits = (self.job.size or 0) <= 50
        return self.job.row() | ({} if fits else {"error": "x", "out_of_memory": True})

    def kill(self) -> None:
        if self in self.alive:
            self.alive.remove(self)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_next_worker_starts_while_one_runs(ahead: int) -> None:
    FakeProcess.alive = []
    begun: list[FakeProcess] = []

    def begin(job: Job) -> Any:
        begun.append(FakeProcess(job))
        return begun[-1]

    study = made("a", "b")
    with capacity.Workers(ahead=ahead, begin=begin) as workers:
        rows = list(capacity.measure(study, FakeRoom(), workers))
    tried = [(row["allocator"], each["size"]) for row in rows for each in row["tries"]]
    went = [(process.job.allocator, process.job.size) for process in begun if process.went]
    assert sorted(went) == sorted(tried)
    assert len(begun) <= len(tried) + 3 * ahead  # those that waited in vain where one ended
    assert FakeProcess.alive == []


def test_what_comes_after_a_search_starts_when_its_end_is_near() -> None:
    workers, then = FakeWorkers({"a": 1.02}, 24 * GIB), Job("v", "a", size=4)
    rows_of(made("a"), workers, then=[then])
    assert then not in workers.following[0]
    assert then in workers.following[-1]


def test_a_worker_learns_its_size_when_it_is_let_go(rig: Machine, root: Any) -> None:
    done = rig.run_fresh(
        f"""
        import json, sys
        sys.path.insert(0, {str(root)!r})
        from benchmarks.workers.job import Job
        from benchmarks.workers.process import start

        process = start(Job("kv", "native", size=999_999))
        process.wait_ready(60)
        process.resize(8)
        process.go()
        print(json.dumps(process.finish(60)))
        """
    )
    row = json.loads(done.stdout)
    assert "error" not in row, row
    assert row["size"] == 8
    assert 500 << 20 < row["live_peak_bytes"] < 1 << 30


def test_a_run_that_does_not_end_does_not_fit() -> None:
    workers = FakeWorkers({"a": 1.02}, 24 * GIB)
    workers.answer = lambda job: (
        {"error": "no end after 0 s"} if job.size and job.size > 50 else None
    )
    study = made("a")
    (row,) = capacity.measure(study, FakeRoom(), workers, seconds=0.0)  # type: ignore[arg-type]
    assert row["complete"]
    assert (row["size"], "error" in row) == (50, False)
    workers.answer = lambda job: {"error": "no end after 0 s"}
    (row,) = capacity.measure(made("a"), FakeRoom(), workers, seconds=0.0)  # type: ignore[arg-type]
    assert row["error"] == "no end after 0 s"  # nothing shows that a size would end


def test_workers_are_ended_when_something_fails() -> None:
    FakeProcess.alive = []
    workers = capacity.Workers(ahead=1, begin=FakeProcess)  # type: ignore[arg-type]

    def fail() -> None:
        with workers:
            workers.run(Job("w", "a", size=4), 9.0, [Job("w", "a", size=8), Job("w", "b", size=2)])
            assert len(FakeProcess.alive) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert FakeProcess.alive == []


# --- with no margin ---------------------------------------------------------------------------


def peaks_row(**changes: Any) -> Row:
    row = Job("w", "native").row() | {
        "kind": "peaks",
        "live_peak_bytes": 1000 << 20,
        "reserved_peak_bytes": 1500 << 20,
        "card": {"peak_bytes": 2000 << 20},
        "run_s": 2.0,
    }
    return row | changes


def test_what_a_workload_needs_comes_from_natives_peaks() -> None:
    larger = peaks_row(live_peak_bytes=1001 << 20, card={"peak_bytes": 1990 << 20})
    changes: list[Row] = [{"error": "boom"}, {"card": None}, {"size": 9}, {"kind": "times"},
                          {"workload": "v"}, {"allocator": "paged"},
                          {"card": {"peak_bytes": 0}}]  # fmt: skip
    others = [peaks_row(**change) for change in changes]
    assert no_margin.need("w", others) is None
    needed = no_margin.need("w", [*others, peaks_row(), larger])
    assert needed == no_margin.Need(500 << 20, 1001 << 20)
    assert needed.with_margin(2) == (500 << 20) + round(1.02 * (1001 << 20))


def test_a_run_without_margin_says_whether_it_ran() -> None:
    room, workers = FakeRoom(), FakeWorkers({}, 0)
    needed = no_margin.Need(500 << 20, 1000 << 20)
    good: Row = {"run_s": 3.0, "alloc_retries": 4, "ooms": 0, "driver": {"synchronisations": 7}}
    for answer, fits in (
        (good, True),
        ({"error": "x", "out_of_memory": True}, False),
        ({"error": "boom", "out_of_memory": False}, None),
    ):
        workers.answer = lambda job, answer=answer: answer  # type: ignore[misc]
        job = no_margin.job("w", "paged")
        row = no_margin.measure(job, needed, room, lambda job: workers.run(job, 9.0))
        assert row["fits"] is fits
        assert row["left_bytes"] == room.asked[-1] - 512
        assert room.asked[-1] == needed.with_margin(2)
        assert row["kind"] == "no_margin"
        assert row["margin_percent"] == 2
        assert (row["retries"], row["synchronisations"]) == ((4, 7) if fits else (None, None))
    assert workers.jobs[0] == Job("w", "paged", card=False, driver_calls=True)
    mine = workers.jobs[0].row() | good
    free = [peaks_row(allocator="paged", run_s=time) for time in (1.0, 2.0, 9.0, 4.0)]
    assert no_margin.time_ratio(mine, free) == pytest.approx(1.0)
    assert no_margin.time_ratio(mine, [peaks_row()]) is None
    assert no_margin.time_ratio(mine | {"steps": 2}, free) is None


# --- the ballast ------------------------------------------------------------------------------


class FakeCard:
    """A card with other processes on it; each allocation costs some bytes more than it holds."""

    def __init__(self, free: int, overhead: int = 0, largest: int = 1 << 62) -> None:
        self.free = free
        self.overhead = overhead
        self.largest = largest
        self.pieces: dict[int, int] = {}
        self.drift = 0

    def free_bytes(self) -> int:
        self.free += self.drift
        return self.free

    def take(self, size_bytes: int) -> int | None:
        assert size_bytes > 0
        assert size_bytes % PAGE_BYTES == 0
        if size_bytes + self.overhead > self.free or size_bytes > self.largest:
            return None
        self.free -= size_bytes + self.overhead
        address = 1 + max(self.pieces, default=0)
        self.pieces[address] = size_bytes
        return address

    def give_back(self, address: int) -> None:
        self.free += self.pieces.pop(address) + self.overhead


def filler(card: FakeCard) -> Filler:
    return Filler(card, pause=lambda seconds: None)


@given(
    free=st.integers(0, 140 * GIB),
    overhead=st.integers(0, PAGE_BYTES // 64),
    largest=st.sampled_from([1 << 62, 300 << 20, PAGE_BYTES]),
    wanted=st.lists(st.integers(6 * GIB, 150 * GIB), min_size=1, max_size=4),
)
def test_what_was_asked_stays_free_to_the_page(
    free: int, overhead: int, largest: int, wanted: list[int]
) -> None:
    if largest == PAGE_BYTES:  # many pieces: a smaller card
        free, wanted = free // 64, [each // 64 for each in wanted]
    card = FakeCard(free, overhead, largest)
    made = filler(card)
    for each in wanted:
        if each >= free + PAGE_BYTES:
            with pytest.raises(BallastError, match="cannot be left free"):
                made.leave(each)
        else:
            left = made.leave(each)
            near = PAGE_BYTES if overhead == 0 else PAGE_BYTES + overhead
            assert each - near < left.free_bytes <= each
            assert left.free_bytes == card.free
        assert made.held_bytes == sum(card.pieces.values())
        assert card.free + made.held_bytes + overhead * len(card.pieces) == free


def test_memory_of_others_is_counted() -> None:
    card = FakeCard(100 * GIB)
    made = filler(card)
    assert made.leave(24 * GIB) == Left(24 * GIB, 76 * GIB)
    card.free -= 10 * GIB  # another process starts
    assert made.leave(24 * GIB) == Left(24 * GIB, 66 * GIB)
    card.free += 10 * GIB
    assert made.leave(40 * GIB) == Left(40 * GIB, 60 * GIB)


def test_a_process_that_gives_memory_back_is_waited_for() -> None:
    card = FakeCard(50 * GIB)
    going = [10 * GIB, 10 * GIB, 0]

    def pause(seconds: float) -> None:
        card.free += going.pop(0) if going else 0

    assert Filler(card, pause).leave(24 * GIB).held_bytes == 46 * GIB
    assert going == []


def test_a_card_that_keeps_changing_is_an_error_in_three_lines() -> None:
    card = FakeCard(100 * GIB)
    card.drift = -8 * PAGE_BYTES
    with pytest.raises(BallastError, match="keeps changing") as caught:
        filler(card).leave(24 * GIB)
    assert len(str(caught.value).splitlines()) == 3


def test_a_machine_without_a_card_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(device: int) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ballast, "CudaDriver", missing)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["ballast", "0"])
    ballast.main()
    error = json.loads(capsys.readouterr().out)["error"]
    assert error.startswith("ballast: no memory of GPU 0 can be held: libcuda.so.1")
    assert len(error.splitlines()) == 3


def test_the_process_answers_until_its_stdin_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = FakeCard(50 * GIB)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{24 * GIB}\n{51 * GIB}\n{40 * GIB}\n"))
    ballast.serve(filler(card))
    ready, first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready == {"free_bytes": 0, "held_bytes": 0}
    assert first == {"free_bytes": 24 * GIB, "held_bytes": 26 * GIB}
    assert second["error"].startswith("ballast: 51.00 GiB cannot be left free.")
    assert third["held_bytes"] == 10 * GIB


@pytest.mark.torch
def test_a_card_is_filled_from_a_process_of_its_own(machine: Machine, root: Any) -> None:
    machine.run_fresh(
        f"""
        import os, signal, subprocess, sys, time
        sys.path.insert(0, {str(root)!r})
        from pathlib import Path
        from benchmarks.workers.ballast import PAGE_BYTES, Ballast, BallastError

        GIB = 1 << 30
        if sys.argv[1:] == ["parent"]:
            with Ballast() as ballast:
                ballast.leave(GIB)
                print(ballast._child.pid, flush=True)
                time.sleep(60)
        with Ballast() as ballast:
            held = []
            for free in (2 * GIB, GIB, 3 * GIB + 12345):
                left = ballast.leave(free)
                assert free - PAGE_BYTES < left.free_bytes <= free, left
                held.append(left.held_bytes)
            assert held[2] < held[0] < held[1], held
            try:
                ballast.leave(1 << 50)
                raise AssertionError("no error")
            except BallastError as error:
                assert "cannot be left free" in str(error), error
            assert ballast.leave(GIB).held_bytes == held[1]
            os.kill(ballast._child.pid, signal.SIGKILL)
            try:
                ballast.leave(GIB)
                raise AssertionError("no error")
            except BallastError as error:
                assert "has ended" in str(error), error

        # It ends at the end of the block, and with its parent, however that ends.
        with Ballast() as ballast:
            pass
        assert ballast._child.poll() == 0
        parent = subprocess.Popen(
            [sys.executable, "-c", sys.orig_argv[2], "parent"], stdout=subprocess.PIPE, text=True
        )
        status = Path("/proc", parent.stdout.readline().strip(), "stat")
        assert status.exists()
        parent.kill()
        parent.wait()
        for _ in range(3000):
            try:
                if status.read_text().rpartition(")")[2].split()[0] == "Z":
                    break  # ended, and nobody has asked how
            except (FileNotFoundError, ProcessLookupError):
                break
            time.sleep(0.01)
        else:
            raise AssertionError("the ballast outlives its parent")
        """
    )
