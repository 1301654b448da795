"""What changed between two sets of results: beyond noise, past a threshold, and for whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import cli
from benchmarks.report.compare import Change, Comparison, compare
from benchmarks.report.compare_host import compare_files
from benchmarks.store import Results, ResultsError, Row, dumps
from tests.results_rows import card, failed, results, row, session

DRIVER = {"calls": {"cuMemMap": 100}, "ms": {"cuMemMap": 10.0}, "second_half_calls": 1,
          "second_half_ms": 0.5, "synchronisations": 2}  # fmt: skip


def steps(factor: float, seed: int, noise: float = 0.01) -> list[float]:
    """Forty steps of very different length, each a little off."""
    work = 10 + 90 * np.random.default_rng(7).random(40)
    return list(factor * work * np.random.default_rng(seed).normal(1, noise, 40))


def runs(factor: float = 1.0, *, rounds: int = 2, seed: int = 1, **changes: Any) -> list[Row]:
    """Native and ours in rounds; `factor` and `changes` are ours'."""
    made = []
    for at in range(rounds):
        made.append(row("native", steps(1.0, seed + 100 + at), round=at))
        made.append(row("paged", steps(factor, seed + at), round=at, **changes))
    return made


def find(found: Comparison, measure: str, allocator: str = "paged") -> Change:
    (change,) = [
        each for each in found.changes if (each.measure, each.allocator) == (measure, allocator)
    ]
    return change


def between(a: list[Row], b: list[Row], threshold: float = 2.0, **environment: Any) -> Comparison:
    after = results(*b, sessions=[session(git_id="def", **environment)])
    return compare(results(*a), after, threshold)


def test_equal_work_has_not_changed() -> None:
    found = between(runs(seed=1), runs(seed=50))
    assert not found.changed
    assert [each.measure for each in found.changes if each.is_beyond_noise] == []
    assert "same kind of machine" in found.text().splitlines()[0]
    assert "gpumem_alloc 0.1.0 (abc) -> 0.1.0 (def)" in found.text()


@pytest.mark.parametrize(("threshold", "changed"), [(2.0, True), (6.0, False)])
def test_a_slower_step_is_beyond_noise_and_held_to_the_threshold(
    threshold: float, changed: bool
) -> None:
    found = between(runs(seed=1), runs(1.05, seed=50), threshold)
    ratio, time = find(found, "step / fastest native"), find(found, "step time")
    for change in (ratio, time):
        assert change.is_beyond_noise
        assert change.is_worse
        assert change.percent == pytest.approx(5, abs=1)
    assert found.changed is changed
    assert not time.counts  # the ratio does, which a slow machine does not move
    faster = between(runs(1.05, seed=1), runs(seed=50))
    assert not faster.changed
    assert find(faster, "step time").is_beyond_noise


def test_a_slower_machine_is_not_our_doing() -> None:
    slow = [each | {"step_ms": [1.2 * ms for ms in each["step_ms"]]} for each in runs(seed=50)]
    found = between(runs(seed=1), slow)
    assert find(found, "step time", "native").is_past_threshold
    assert find(found, "step time").is_past_threshold
    assert not find(found, "step / fastest native").is_beyond_noise
    assert not found.changed


def test_without_ours_everything_counts() -> None:
    heavier = [row("native", card=card(1000)), row("expandable", card=card(1000))]
    assert between(heavier, [row("native", card=card(1500)), heavier[1]]).changed
    assert not between(
        [*heavier, row("paged")], [row("native", card=card(1500)), row("paged")]
    ).changed


def test_times_of_another_machine_are_shown_and_not_judged() -> None:
    a, b = ([row("paged", steps(factor, seed))] for factor, seed in ((1.0, 1), (1.3, 2)))
    assert between(a, b).changed  # no native beside it, so the ms count
    other = between(a, b, gpu="NVIDIA L4")
    assert not other.changed
    assert find(other, "step time").note.endswith("other machine")
    assert other.text().startswith("NOT the same: gpu NVIDIA H200 -> NVIDIA L4")


def test_two_runs_that_differ_by_themselves_hide_a_difference() -> None:
    def unsteady(low: float, high: float) -> list[Row]:
        return [row("paged", steps(factor, 3), round=at) for at, factor in enumerate((low, high))]

    assert not find(between(unsteady(1.0, 1.2), unsteady(1.1, 1.3)), "step time").is_beyond_noise
    assert find(between(unsteady(1.0, 1.02), unsteady(1.1, 1.12)), "step time").is_beyond_noise


@pytest.mark.parametrize(
    ("mib", "beyond", "changed"), [(1004, False, False), (1006, True, False), (1021, True, True)]
)
def test_peaks_change_beyond_half_a_percent(mib: int, beyond: bool, changed: bool) -> None:
    before = runs(card=card(1000))
    found = between(before, runs(card=card(mib)))
    assert find(found, "card peak").is_beyond_noise is beyond
    assert found.changed is changed


def test_peaks_change_beyond_what_runs_differ_by() -> None:
    unsteady = [row("paged", card=card(1000)), row("paged", card=card(1100), round=1)]
    found = between(unsteady, [row("paged", card=card(1190))])
    assert not find(found, "card peak").is_beyond_noise  # 90 above, and runs differ by 100


def test_few_runs_have_an_assumed_noise() -> None:
    slower = {**DRIVER, "ms": {"cuMemMap": 12.0}}
    far = {**DRIVER, "ms": {"cuMemMap": 20.0}, "calls": {"cuMemMap": 110}}
    base = [row("paged", kind="peaks", driver=DRIVER)]
    near_found = between(base, [row("paged", kind="peaks", driver=slower)])
    assert not find(near_found, "driver time").is_beyond_noise
    found = between(base, [row("paged", kind="peaks", driver=far)])
    assert find(found, "driver time").is_beyond_noise
    assert find(found, "driver time").note == "ranges of 1 and 1 runs, and 25 %"
    assert find(found, "driver calls").percent == pytest.approx(10)
    several = [row("paged", kind="peaks", driver=DRIVER, round=at) for at in range(4)]
    others = [row("paged", kind="peaks", driver=slower, round=at) for at in range(4)]
    assert find(between(several, others), "driver time").is_beyond_noise
    assert not find(between(several, others[:3]), "driver time").is_beyond_noise


def test_failing_now_and_other_losses_count_whatever_the_threshold() -> None:
    good = [row("native"), row("native", round=1), row("paged")]
    broken = between(good, [*good[:2], failed("paged", "boom")], threshold=1e9)
    assert broken.changed
    assert find(broken, "fails").note == "boom"
    wrong = between(good, [*good[:2], row("paged", losses=["0x0p+0"] * 8)], threshold=1e9)
    assert wrong.changed
    assert not between([*good[:2], failed("paged", "boom")], good).changed


def test_less_that_fits_is_worse() -> None:
    def study(size: int, **changes: Any) -> list[Row]:
        made = {"kind": "capacity", "workload": "buffers", "allocator": "paged", "session": 0}
        return [made | {"limit_gb": 24, "size": size, "unit": "buffers", "tries": []} | changes]

    assert between(study(100), study(90)).changed
    assert not between(study(100), study(120)).changed
    assert find(between(study(100), study(120)), "capacity in 24 GiB").percent == pytest.approx(20)
    assert not find(between(study(100), study(99)), "capacity in 24 GiB").is_beyond_noise
    cut = {"complete": False, "fails_at": None}
    assert not between(study(100), study(90, **cut)).changed  # more may fit
    assert between(study(100, **cut), study(90)).changed
    assert between(study(100), study(80, complete=False, fails_at=90)).changed


def test_what_only_one_side_has_is_named() -> None:
    found = between([row("native"), row("paged")], [row("native"), row("expandable")])
    assert found.only_before == ["buffers/paged"]
    assert found.only_after == ["buffers/expandable"]
    assert "only in A: buffers/paged" in found.text()
    assert compare(results(), results(), 2.0).changes == []
    longer = between([row("paged")], [row("paged", [9.0] * 24, card=card(9000))])
    assert longer.only_before == ["buffers/paged (8 steps)"]
    assert longer.only_after == ["buffers/paged (24 steps)"]
    assert not longer.changed


@pytest.mark.parametrize(("ms", "changed"), [(106.0, False), (130.0, True)])
def test_a_program_of_one_step_and_one_round_has_an_assumed_noise(ms: float, changed: bool) -> None:
    before, after = (
        results(row("native", [100.0], kind="script"), row("paged", [each], kind="script"))
        for each in (100.0, ms)
    )
    assert compare(before, after, 2.0).changed is changed


def write(path: Path, made: Results) -> Path:
    path.write_text(dumps(made))
    return path


def test_the_command_ends_with_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write(tmp_path / "a.json", results(*runs(seed=1)))
    after = write(tmp_path / "b.json", results(*runs(1.05, seed=50)))
    assert cli.main(["compare", str(before), str(after)]) == cli.CHANGED == 3
    shown = capsys.readouterr().out
    assert "of ours, worse by more than 2 %: 1\n  buffers, paged: step / fastest native" in shown
    assert cli.main(["compare", str(before), str(before)]) == 0
    folder = tmp_path / "several"
    folder.mkdir()
    write(folder / "x.json", results(*runs(rounds=1, seed=1)))
    write(folder / "y.json", results(*runs(rounds=1, seed=2)))
    assert cli.main(["compare", str(folder), str(after)]) == cli.CHANGED
    nothing = write(tmp_path / "nothing.json", results())
    assert cli.main(["compare", str(before), str(nothing)]) == cli.BAD_INPUT
    assert "nothing was compared" in capsys.readouterr().err
    costs = host(tmp_path / "host.json", [1.0])
    assert cli.main(["compare", str(costs), str(costs)]) == 0
    capsys.readouterr()
    assert cli.main(["compare", str(before), str(after), "--threshold", "9", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["changed"] is False
    assert {each["measure"] for each in content["changes"]} >= {"card peak", "step time"}


def host(path: Path, ns: list[float], **machine: Any) -> Path:
    rows = [{"allocator": "paged@bridge", "round": at, "ns": {"pair 512": each, "x": None}}
            for at, each in enumerate(ns)]  # fmt: skip
    rows.append({"allocator": "native", "round": 0, "ns": {"pair 512": 400.0}})
    content = {"date": "x", "machine": {"gpu": "G", **machine}, "rows": rows}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ([100.0], [109.0], False),  # one round: 10 % are noise
        ([100.0], [120.0], True),
        ([100.0, 102.0], [104.0, 106.0], False),
        ([100.0, 102.0], [120.0, 122.0], True),
        ([100.0, 100.0, 101.0, 102.0], [104.0, 104.0, 105.0, 106.0], True),
        ([100.0, 100.0, 101.0, 105.0], [104.0, 104.0, 105.0, 106.0], False),
        ([120.0], [100.0], False),
    ],
)
def test_host_costs_are_compared(
    tmp_path: Path, before: list[float], after: list[float], changed: bool
) -> None:
    found = compare_files(host(tmp_path / "a", before), host(tmp_path / "b", after), 2.0)
    assert found.changed is changed
    other = host(tmp_path / "c", after, cores=64)
    assert not compare_files(host(tmp_path / "a", before), other, 2.0).changed


def test_files_of_two_kinds_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot be used as results"):
        compare_files(host(tmp_path / "a", [1.0]), write(tmp_path / "b", results()), 2.0)
