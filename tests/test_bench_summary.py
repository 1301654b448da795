"""The benchmark's arithmetic: which rows count, what is compared with what, and the verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.report import intervals, losses, verdicts
from benchmarks.report.summary import LOCKSTEP, PEAKS_PASS, ROUNDS, Entry, Summary, summarise
from benchmarks.store import Results, Row, merge
from tests.results_rows import MIB, STEADY, card, failed, results, row, session

NATIVE = row("native")


def scaled(factor: float) -> list[float]:
    return [factor * ms for ms in STEADY]


def one(made: Results) -> Summary:
    (summary,) = summarise(made)
    return summary


def entry_of(allocator: str, *rows: Row, **others: Any) -> Entry:
    entry = one(results(*rows, **others)).entry("buffers", allocator)
    assert entry is not None
    return entry


def to_fastest(entry: Entry) -> intervals.Interval:
    assert entry.times is not None
    assert entry.times.to_fastest is not None
    return entry.times.to_fastest


# Step times.


def test_steps_are_compared_with_the_native_of_the_smallest_median_step() -> None:
    # expandable's sum is smaller and its median is not
    expandable = row("expandable", [1.0, 1.0, 4.1, 4.1, 4.1, 4.1, 4.1, 4.1])
    ours = row("paged", scaled(1.1))
    entry = entry_of("paged", NATIVE, expandable, ours)
    assert entry.times is not None
    assert entry.times.fastest == ("native",)
    assert entry.times.way == ROUNDS
    ratio = to_fastest(entry)
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((1.1, 1.1, 1.1))
    assert ratio.rounds == pytest.approx((1.1,))
    assert ratio.steps == 6
    assert not to_fastest(entry).reaches_one()


def test_the_first_quarter_of_the_steps_is_left_out() -> None:
    assert [intervals.warm_up(steps) for steps in (1, 4, 9, 40)] == [0, 1, 2, 10]
    ours = row("paged", [1.0, 1.0, *STEADY[2:]])
    assert to_fastest(entry_of("paged", NATIVE, ours)).median == 1.0
    assert entry_of("paged", NATIVE, ours).times.first_step_ms == 1.0  # type: ignore[union-attr]


@pytest.mark.parametrize("elsewhere", [{"round": 1}, {"session": 1}, {"group": 7}])
def test_native_runs_of_another_round_session_or_group_do_not_count(
    elsewhere: dict[str, int],
) -> None:
    fast = row("expandable", scaled(0.5), **elsewhere)
    ours = row("paged", scaled(1.0))
    entry = entry_of("paged", NATIVE, fast, ours, sessions=[session(), session()])
    assert to_fastest(entry).median == 1.0
    assert entry_of("paged", ours, row("native", **elsewhere), sessions=[session()] * 2).times
    alone = entry_of("paged", ours, row("native", **elsewhere), sessions=[session()] * 2)
    assert alone.times is not None
    assert alone.times.to_fastest is None


def test_lockstep_groups_are_compared_within_themselves_and_count_before_rounds() -> None:
    rows = [row("native", group=0), row("paged", scaled(1.2), group=0)]
    rows += [row("native", scaled(2.0), group=1, round=1)]
    rows += [row("paged", scaled(2.0), group=1, round=1)]
    rows += [NATIVE, row("paged", scaled(5.0))]
    entry = entry_of("paged", *rows)
    assert entry.times is not None
    assert (entry.times.rounds, entry.times.way) == (2, LOCKSTEP)
    assert to_fastest(entry).rounds == pytest.approx((1.2, 1.0))


def test_the_peaks_pass_gives_times_only_where_there_are_no_others() -> None:
    rows = [row("native", kind="peaks"), row("paged", scaled(1.5), kind="peaks")]
    entry = entry_of("paged", *rows)
    assert entry.times is not None
    assert entry.times.way == PEAKS_PASS
    assert to_fastest(entry).median == 1.5
    assert said(one(results(*rows)))["time"] is None  # it decides nothing
    assert to_fastest(entry_of("paged", *rows, NATIVE, row("paged"))).median == 1.0


def test_a_peaks_pass_that_was_resumed_is_compared_with_the_natives_before() -> None:
    before = [row("native", kind="peaks"), row("expandable", scaled(0.5), kind="peaks")]
    after = [row("cudaMallocAsync", scaled(4.0), kind="peaks", session=1)]
    after += [row("paged", kind="peaks", session=1)]
    entry = entry_of("paged", *before, *after, sessions=[session(), session()])
    assert entry.times is not None
    assert entry.times.fastest == ("expandable",)
    assert to_fastest(entry).median == 2.0


def test_sessions_of_one_setting_are_pooled_and_others_kept_apart() -> None:
    rows = [NATIVE, row("paged"), row("native", session=1), row("paged", scaled(1.2), session=1)]
    pooled = one(results(*rows, sessions=[session(), session()]))
    (entry,) = [each for each in pooled.entries if each.allocator == "paged"]
    assert to_fastest(entry).rounds == pytest.approx((1.0, 1.2))
    old, new = session("2026-01-01"), session("2026-01-02", driver="590")
    newest, other = summarise(results(*rows, sessions=[old, new]))
    assert newest.setting.environment["driver"] == "590"
    assert [len(each.entries) for each in (newest, other)] == [2, 2]


def test_of_ours_only_the_newest_version_counts() -> None:
    sessions = [session("2026-01-02", git_id="new"), session("2026-01-01", git_id="old")]
    rows = [NATIVE, row("paged"), row("native", session=1)]
    rows += [row("paged", scaled(9.0), session=1, card=card(5000), alloc_retries=4)]
    entry = entry_of("paged", *rows, sessions=sessions)
    assert to_fastest(entry).median == 1.0
    assert entry.retries == 0
    assert entry.over_lowest == 1.0
    assert entry.peaks is not None
    assert entry.peaks.runs == 1
    assert entry.times is not None
    assert not entry.times.is_older
    native = entry_of("native", *rows, sessions=sessions)
    assert native.peaks is not None
    assert native.peaks.runs == 2
    broken = [NATIVE, failed("paged", "boom"), row("paged", session=1)]
    assert entry_of("paged", *broken, sessions=sessions).failed


def test_times_of_an_older_version_are_kept_and_named_until_there_are_newer_ones() -> None:
    sessions = [session("2026-01-01", git_id="old"), session("2026-01-02", git_id="new")]
    old = [row("native"), row("paged", card=card(5000))]
    new = [row("native", kind="peaks", session=1), row("paged", kind="peaks", session=1)]
    entry = entry_of("paged", *old, *new, sessions=sessions)
    assert entry.times is not None
    assert entry.times.is_older
    assert entry.peaks is not None
    assert entry.peaks.card_bytes == 1100 * MIB  # of the new one alone
    native = entry_of("native", *old, *new, sessions=sessions)
    assert native.times is not None
    assert not native.times.is_older


def test_runs_of_a_workload_that_has_other_steps_since_do_not_count() -> None:
    sessions = [session("2026-01-02"), session("2026-01-01")]
    old = [row("native", [1.0] * 24, session=1, card=card(5000))]
    entry = entry_of("native", NATIVE, *old, sessions=sessions)
    assert entry.peaks is not None
    assert entry.peaks.card_bytes == 1100 * MIB
    assert entry.times is not None
    assert entry.times.rounds == 1
    assert entry_of("native", *old, sessions=sessions).peaks is not None  # while it is the only one


def test_runs_of_a_workload_that_has_other_code_since_do_not_count() -> None:
    sessions = [session("2026-01-02"), session("2026-01-01")]
    old = row("native", session=1, card=card(5000), code_id="a")
    for new_id, card_mib in (("b", 1100), ("a", 5000)):
        entry = entry_of("native", {**NATIVE, "code_id": new_id}, old, sessions=sessions)
        assert entry.peaks is not None
        assert entry.peaks.card_bytes == card_mib * MIB, new_id


def test_shorter_runs_do_not_count_beside_whole_ones() -> None:
    short = [row("native", [1.0] * 4, steps=4), row("paged", [9.0] * 4, steps=4)]
    assert to_fastest(entry_of("paged", *short)).median == 9.0
    assert to_fastest(entry_of("paged", *short, NATIVE, row("paged"))).rounds == (1.0,)


def test_merged_files_keep_their_groups_and_sessions_apart() -> None:
    first = results(row("native", group=0), row("paged", group=0))
    second = results(row("native", scaled(3.0), group=0), row("paged", scaled(3.0), group=0))
    entry = one(merge([first, second])).entry("buffers", "paged")
    assert entry is not None
    assert to_fastest(entry).rounds == (1.0, 1.0)


# Intervals.


def test_the_interval_holds_the_median_and_narrows_with_agreement() -> None:
    random = np.random.default_rng(3)
    wide = intervals.interval(list(random.normal(1.0, 0.1, size=(2, 30))))
    narrow = intervals.interval(list(random.normal(1.0, 0.1, size=(2, 600))))
    assert wide is not None
    assert narrow is not None
    assert 0.9 < wide.low < wide.median < wide.high < 1.1
    assert narrow.high - narrow.low < (wide.high - wide.low) / 3
    assert intervals.interval([]) is None
    assert intervals.interval([np.full(4, np.nan)]) is None


def test_a_program_of_one_step_is_as_sure_as_its_rounds_agree() -> None:
    found = intervals.interval([np.array([each]) for each in (1.1, 1.0, 0.6)])
    assert found is not None
    assert (found.low, found.median, found.high) == (0.6, 1.0, 1.1)


@pytest.mark.parametrize(("rounds", "met"), [(1, None), (2, None), (3, False)])
def test_a_program_of_one_step_is_judged_by_three_rounds(rounds: int, met: bool | None) -> None:
    made = results(*(
        row(name, [ms], kind="script", round=at)
        for at in range(rounds)
        for name, ms in (("native", 100.0), ("paged", 106.0))
    ))  # fmt: skip
    (summary,) = summarise(made)
    (said,) = [each for each in verdicts.verdicts(summary) if each.measure == verdicts.TIME]
    assert said.met is met
    assert said.text.endswith("one step a run, and fewer than 3 rounds: not decided") is (
        met is None
    )


def test_rounds_of_unequal_length_are_lined_up_by_step() -> None:
    long = intervals.step_ratios([1.0] * 8, [1.0] * 8)
    short = intervals.step_ratios([3.0] * 4, [1.0] * 4)
    found = intervals.interval([long, short])
    assert found is not None
    assert found.rounds == (1.0, 3.0)
    assert found.steps == 7  # 1..7: the short one compares 1 to 3, the long one 2 to 7
    table = intervals.as_table([long, short])
    assert np.isnan(table).tolist() == [[True] + [False] * 6, [False] * 3 + [True] * 4]
    medians = intervals.bootstrap(table)
    drawn = [np.nanmedian(table[:, pick]) for pick in picks(table)]
    assert medians[: len(drawn)] == pytest.approx(drawn)


def picks(table: Any) -> Any:
    """The first steps that bootstrap() draws."""
    random = np.random.default_rng(intervals.SEED)
    return random.integers(0, table.shape[1], size=(intervals.AT_ONCE, table.shape[1]))


def test_rounds_stay_together_unless_asked() -> None:
    table = np.array([[1.0] * 9, [3.0] * 9])
    assert set(intervals.bootstrap(table)) == {2.0}
    assert set(intervals.bootstrap(table, draw_rounds=True)) == {1.0, 2.0, 3.0}


@pytest.mark.parametrize(("low", "reaches"), [(0.9, True), (1.0004, True), (1.0006, False)])
def test_an_interval_that_reads_1_000_reaches_it(low: float, reaches: bool) -> None:
    assert intervals.Interval(low, 1.1, 1.2, (1.1,), 6).reaches_one() is reaches


# Peaks.


def test_base_is_what_native_holds_beyond_its_allocator_in_the_same_session() -> None:
    rows = [NATIVE, row("paged", card=card(1000)), row("paged", card=card(1050), round=1)]
    rows += [row("native", card=card(1900), session=1)]  # a base of 900 there
    entry = entry_of("paged", *rows, sessions=[session(), session()])
    assert entry.peaks is not None
    assert entry.peaks.base_bytes == 100 * MIB
    assert entry.peaks.card_ratio == pytest.approx(950 / 900)  # the worst run counts
    assert entry.peaks.utilisation == pytest.approx(900 / 950)
    assert entry.peaks.card_spread_bytes == 50 * MIB
    assert entry.peaks.runs == 2


def test_a_card_that_shows_less_than_was_reserved_gives_no_base() -> None:
    entry = entry_of("paged", row("native", card=card(0)), row("paged", card=card(0)))
    assert entry.peaks is not None
    assert entry.peaks.base_bytes is None
    assert entry.peaks.utilisation is None


def test_figures_that_an_allocator_does_not_tell_are_missing() -> None:
    silent = {"live_peak_bytes": None, "reserved_peak_bytes": None, "alloc_retries": None}
    entry = entry_of("rmm-pool", NATIVE, row("rmm-pool", card=card(1000), **silent))
    assert entry.peaks is not None
    assert entry.peaks.live_bytes is None
    assert entry.peaks.reserved_bytes is None
    assert entry.retries is None
    assert entry.peaks.card_ratio == pytest.approx(900 / 900)  # over native's live
    blind = entry_of("paged", NATIVE, row("paged", card=None))
    assert blind.peaks is not None
    assert blind.peaks.card_bytes is None
    assert blind.peaks.card_ratio is None
    assert blind.over_lowest is None


def test_the_card_is_not_asked_while_others_are_on_it() -> None:
    together = row("paged", group=0, card=card(9000))
    entry = entry_of("paged", NATIVE, row("native", group=0), together, row("paged", kind="peaks"))
    assert entry.peaks is not None
    assert entry.peaks.card_bytes == 1100 * MIB
    only = entry_of("paged", row("native", group=0), together)
    assert only.peaks is not None
    assert only.peaks.card_bytes is None
    assert only.peaks.reserved_bytes == 1000 * MIB


def test_a_peak_is_placed_among_the_rivals_and_among_all() -> None:
    rows = [NATIVE, row("expandable", card=card(1050)), row("no-caching", card=card(1000))]
    entry = entry_of("paged", *rows, row("paged", card=card(1071)))
    assert entry.over_lowest == pytest.approx(1.02)
    assert entry.over_all == pytest.approx(1.071)
    assert entry_of("paged", *rows, row("paged", card=card(900))).over_lowest == 1.0


def test_driver_calls_are_those_of_a_run() -> None:
    driver = {"calls": {"cuMemMap": 3, "cuMemCreate": 2}, "ms": {"cuMemMap": 1.5},
              "second_half_calls": 1, "second_half_ms": 0.5, "synchronisations": 4}  # fmt: skip
    entry = entry_of("paged", NATIVE, row("paged", kind="peaks", driver=driver))
    assert entry.driver is not None
    assert (entry.driver.calls, entry.driver.ms, entry.driver.synchronisations) == (5, 1.5, 4)
    assert entry_of("native", NATIVE).driver is None


# Names.


def test_ours_is_named_by_the_door_that_served() -> None:
    rows = [NATIVE, row("paged@bridge"), row("paged", door="stock", round=1)]
    rows += [row("paged-lean@stock", door="stock")]
    names = ["native", "paged", "paged@stock", "paged-lean@stock"]
    assert one(results(*rows)).allocators() == names
    assert entry_of("paged", *rows).doors == ("bridge",)
    assert entry_of("paged@stock", *rows).doors == ("stock",)


def test_a_workload_at_a_size_is_another_one() -> None:
    summary = one(results(NATIVE, row("native", size=64)))
    assert summary.workloads() == ["buffers", "buffers at 64"]


# Losses.


@pytest.mark.parametrize(
    ("native", "second", "ours", "expected"),
    [
        ("ab", "ab", "ab", "equal"),
        ("ab", "ab", "ac", "differ from step 1"),
        ("ab", "ac", "ad", "not comparable"),
        ("ab", "ac", "ac", "equal"),
        ("ab", None, "ac", "not comparable"),
        ("ab", None, "ab", "equal"),
    ],
)
def test_losses(native: str, second: str | None, ours: str, expected: str) -> None:
    def fixed(allocator: str, text: str, **changes: Any) -> Row:
        steps = {"kind": "losses", "deterministic": True, "steps": 2, "losses": list(text)}
        return row(allocator, [1.0] * 2, **(steps | changes))

    rows = [
        fixed("native", native),
        fixed("paged", ours),
        row("paged", [1.0] * 2, losses=["x"] * 2),
    ]
    rows += [fixed("native", second, round=1)] if second else []
    rows += [fixed("native", "zz", session=1), fixed("native", "zz", session=1)]
    assert losses.compare(rows, "paged") == expected
    reference = {"ab": "equal", "ac": "not comparable", None: "equal"}[second]
    assert losses.compare(rows, "native") == reference
    assert losses.compare([fixed("native", native)], "native") == "not run"


@pytest.mark.parametrize(
    ("workload", "expected"),
    [("buffers", "differ from step 1"), ("llama_generate", losses.UNORDERED)],
)
def test_usual_kernels_of_an_unordered_workload_prove_nothing(workload: str, expected: str) -> None:
    def plain(allocator: str, text: str, number: int) -> Row:
        return row(
            allocator, [1.0] * 2, losses=list(text), round=number, workload=workload, steps=2
        )

    rows = [plain("native", "ab", 0), plain("native", "ab", 1), plain("paged", "ac", 0)]
    assert losses.compare(rows, "paged") == expected
    failed = [text for text in verdicts.failures(one(results(*rows))) if "losses" in text]
    assert bool(failed) == (workload == "buffers")


# Verdicts.


def said(summary: Summary) -> dict[str, bool | None]:
    return {each.measure: each.met for each in verdicts.verdicts(summary, ["paged"])}


@pytest.mark.parametrize(
    ("peak_mib", "factor", "card_met", "time_met"),
    [(1049, 1.0, True, True), (1061, 0.9, False, True), (900, 1.01, True, False)],
)
def test_ours_is_held_to_card_and_time(
    peak_mib: int, factor: float, card_met: bool, time_met: bool
) -> None:
    rows = [NATIVE, row("expandable", scaled(2.0), card=card(1050))]
    summary = one(results(*rows, row("paged", scaled(factor), card=card(peak_mib))))
    assert said(summary) == {"card": card_met, "time": time_met, "losses": True}


def test_pytorchs_allocators_are_held_to_nothing() -> None:
    slow = row("expandable", scaled(9.0), card=card(9000), losses=["0x0p+0"] * 8)
    assert verdicts.verdicts(one(results(NATIVE, slow))) == []


def test_what_was_not_measured_is_neither_met_nor_lost() -> None:
    summary = one(results(row("paged", card=None, losses=[""] * 8)))
    assert said(summary) == {"card": None, "time": None, "losses": None}
    assert verdicts.losing(summary) == []


def test_failed_runs_and_other_losses_are_failures() -> None:
    differing = row("paged", losses=["0x0p+0"] * 8)
    twice = [NATIVE, row("native", round=1)]
    assert verdicts.failures(one(results(*twice, differing))) == [
        "buffers, paged: losses differ from step 0"
    ]
    broken = one(results(NATIVE, failed("paged", "exit code 1: boom")))
    assert verdicts.failures(broken) == ["buffers, paged: exit code 1: boom"]
    later = one(results(NATIVE, failed("paged", "no end after 5 s"), row("paged", round=1)))
    assert verdicts.failures(later) == []
    (entry,) = [each for each in later.entries if each.allocator == "paged"]
    assert entry.errors == ("no end after 5 s",)


def capacity(allocator: str, size: int | None, **changes: Any) -> Row:
    made = {"kind": "capacity", "workload": "buffers", "allocator": allocator, "session": 0}
    return made | {"limit_gb": 24, "size": size, "unit": "buffers", "tries": []} | changes


@pytest.mark.parametrize(("size", "met"), [(100, True), (99, False), (None, False)])
def test_ours_is_held_to_what_fits_under_pytorchs(size: int | None, met: bool) -> None:
    rows = [capacity("native", 50), capacity("expandable", 100), capacity("paged", size)]
    rows += [capacity("native", 999, limit_gb=40)]
    assert said(one(results(*rows))) == {"capacity": met}


@pytest.mark.parametrize(
    ("native", "paged", "met"),
    [
        ({}, {"complete": False, "fails_at": None}, None),
        ({}, {"complete": False, "fails_at": 120}, None),
        ({}, {"complete": False, "fails_at": 100}, False),
        ({"complete": False, "fails_at": None}, {"size": 120}, None),
        ({"complete": False, "fails_at": 110}, {"size": 120}, True),
        ({"complete": False, "fails_at": None}, {}, False),
        ({}, {"complete": False, "fails_at": None, "size": 100}, True),
    ],
)
def test_a_search_that_was_cut_short_decides_only_what_it_can(
    native: Row, paged: Row, met: bool | None
) -> None:
    rows = [capacity("native", 100) | native, capacity("paged", 90) | paged]
    (made,) = verdicts.verdicts(one(results(*rows)))
    assert made.met is met
    assert ("cut short" in made.text) is (met is None)


def test_only_rows_of_ours_that_lose_have_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = one(results(NATIVE, row("paged", scaled(1.5), card=card(1000))))
    monkeypatch.setattr(verdicts, "why", lambda: {("buffers", "paged", "card"): "because"})
    missing, needless = verdicts.unexplained(summary)
    assert [each.key for each in missing] == [("buffers", "paged", "time")]
    assert needless == [("buffers", "paged", "card")]


def test_an_error_that_comes_again_is_said_once() -> None:
    made = results(*(failed("paged", "boom") | {"round": at} for at in range(3)))
    assert summarise(made)[0].entry("buffers", "paged").errors == ("boom",)  # type: ignore[union-attr]
