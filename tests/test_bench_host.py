"""The benchmarks of the host's side: their arithmetic, and their workers on the stand-in card."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.host import bursts, compiled_loops, host_cost, host_process, scale
from benchmarks.host import scale_curves as curves
from benchmarks.host.host_cost_worker import CONTEXTS, PERCENTILES, at_least, make_holes
from tests.rig.machine import Machine

BENCHMARKS = Path(host_cost.__file__).parent
LAST_WORDS = {"allocator": "rmm-pool", "round": 0, "error": "boom"}


def cost(allocator: str, index: int, pair: float, stats: float | None = 100.0) -> host_cost.Row:
    door = allocator.partition("@")[2] or None
    ns = {"pair 512": pair, "getDeviceStats": stats}
    return {"allocator": allocator, "round": index, "door": door, "ns": ns}


def test_the_least_costs_of_the_same_rounds_are_compared() -> None:
    rows = [cost("native", 0, 400.0), cost("native", 1, 800.0), cost("native", 2, 400.0)]
    rows += [cost("paged@bridge", 0, 40.0), cost("paged@bridge", 1, 40.0)]
    rows += [cost("paged@bridge", 2, 200.0), cost("paged@bridge", 3, 9.0)]  # no native run
    rows += [cost("paged@stock", 0, 200.0, None)]
    assert host_cost.ratios(rows, "paged@bridge")["pair 512"] == pytest.approx(0.1)
    rows += [cost("native", 4, 300.0), cost("paged@bridge", 4, 60.0)]
    assert host_cost.ratios(rows, "paged@bridge")["pair 512"] == pytest.approx(40 / 300)
    del rows[-2:]
    assert host_cost.ratios(rows, "paged@stock") == {"pair 512": 0.5, "getDeviceStats": None}
    assert host_cost.costs(rows, "native") == {"pair 512": 400.0, "getDeviceStats": 100.0}
    text = host_cost.render(rows)
    assert "| ns per call | native | paged@bridge | paged@stock |\n|---|---|---|---|\n" in text
    assert "| pair 512 | 400 | 0.10 × | 0.50 × |" in text
    assert text.endswith("| getDeviceStats | 100 | 1.00 × | – |")
    assert host_cost.failures(rows) == []


def test_costs_beyond_their_goal_are_named() -> None:
    rows = [cost("native", 0, 400.0), cost("paged@stock", 0, 400.0, None)]  # no goal for this door
    rows += [cost("paged@bridge", 0, 120.0, None), LAST_WORDS]
    assert host_cost.failures(rows) == [
        "rmm-pool: boom",
        "paged@bridge, pair 512: 0.300 of native's, goal 0.25",
        "paged@bridge, getDeviceStats: not measured, goal 1.0",
    ]


def single_calls(allocator: str, p50: float, **more: Any) -> host_cost.Row:
    name = "allocate 512, holes"
    ns = {f"{name} {each}": p50 * 10**at for at, each in enumerate(PERCENTILES)}
    ns = {"pair 512, holes": 3 * p50, **ns}
    return {"allocator": allocator, "round": 0, "ns": ns, "clock_ns": 9.6, **more}


def test_single_calls_have_a_table_of_their_own() -> None:
    bounds = {"at_least": ["pair 512, holes", "allocate 512, holes p50"]}
    rows = [single_calls("native", 100.0), single_calls("rmm-pool", 5000.0, **bounds)]
    assert host_cost.render(rows).splitlines()[2:] == ["| pair 512, holes | 300 | > 50.00 × |"]
    assert host_cost.render_latencies(rows).splitlines() == [
        "| ns, p50 / p99 / p99.99 | native | rmm-pool |",
        "|---|---|---|",
        "| allocate 512, holes | 100 / 1,000 / 10,000 | > 5,000 / 50,000 / 500,000 |",
        "",
        "What reading the clock takes, 10 ns at most, is taken off.",
    ]
    assert host_cost.render_latencies([cost("native", 0, 1.0)]) == ""


def test_with_fewer_holes_than_asked_a_cost_is_a_bound() -> None:
    torch = SimpleNamespace(empty=lambda *_, **__: object(), uint8=None)
    kept, holes = make_holes(torch, 300)
    assert holes == 300 == sum(each is None for each in kept) == len(kept) / 2
    assert make_holes(torch, 300, seconds=0.0) == ([], 0)
    costs = ["pair 512", "pair 512, holes", "free 512, holes p50"]
    assert at_least(costs, 300, 300) == []
    assert at_least(costs, 299, 300) == ["pair 512, holes", "free 512, holes p50"]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been run, one line each; every second run fails."""
    asked: list[str] = []

    def run_worker(worker: str, allocator: str, library: Path, extra: list[str], s: float) -> Any:
        asked.append(" ".join([worker, allocator, *extra]))
        if len(asked) % 2 == 0:
            return {"allocator": allocator, "error": "boom"}
        return cost(allocator, 0, 1.0) | {"curves": {}, "took_s": 1.0}

    for program in (host_cost, scale):
        monkeypatch.setattr(program, "run_worker", run_worker)
        monkeypatch.setattr(program, "compile_loops", lambda name, folder: folder / name)
        monkeypatch.setattr(program, "environment", lambda: {"gpu": "G"})
    return asked


def test_rounds_alternate_and_keep_what_they_have(no_processes: list[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "costs.json"
    arguments = argparse.Namespace(
        pairs=5, tries=2, rounds=2, seconds=60.0, allocators=["native", "paged"], out=out
    )
    host_cost.measure(arguments)
    extra = "--pairs 5 --tries 2"
    worker = "host_cost_worker"
    assert no_processes == [
        *(f"{worker} {name} {extra}" for name in ("native", "paged", "paged", "native"))
    ]
    results = json.loads(out.read_text())
    assert results["machine"] == {"gpu": "G"}
    assert [row["round"] for row in results["rows"]] == [0, 0, 1, 1]
    assert ["error" in row for row in results["rows"]] == [False, True, False, True]
    assert results["ratios"]["paged"] == {}  # its only good round had no native one
    assert [path.name for path in out.parent.iterdir()] == ["costs.json"]
    arguments.seconds = 0.0
    no_processes.clear()
    host_cost.measure(arguments)
    assert len(no_processes) == 2  # one round always


def test_the_limits_of_curves_reach_the_worker(no_processes: list[str], tmp_path: Path) -> None:
    limits = {"point_seconds": 0.5, "live": 10, "streams": 2, "threads": 3, "gb": 0.5}
    out = tmp_path / "scale.json"
    scale.measure(argparse.Namespace(rounds=1, allocators=["native"], out=out, **limits))
    assert no_processes == [
        "scale_worker native --point-seconds 0.5 --live 10 --streams 2 --threads 3 --gb 0.5"
    ]
    assert json.loads(out.read_text())["rows"][0]["allocator"] == "native"


def test_an_allocator_that_is_not_there_is_bad_input() -> None:
    assert host_process.names("native,paged@bridge") == ["native", "paged@bridge"]
    with pytest.raises(argparse.ArgumentTypeError, match="no allocator 'nativ'"):
        host_process.names("native,nativ")
    with pytest.raises(argparse.ArgumentTypeError, match="memcheck is a tool"):
        host_process.names("native,memcheck")


def test_bursts_alternate_and_show_the_least(
    no_processes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([30.0, 9.0, 11.0, 20.0])  # native, tensor, and back

    def run_worker(worker: str, allocator: str, *_: Any) -> Any:
        no_processes.append(f"{worker} {allocator}")
        return {"allocator": allocator, "us": {"5": next(found)}}

    monkeypatch.setattr(bursts, "run_worker", run_worker)
    monkeypatch.setattr(bursts, "environment", lambda: {"gpu": "G"})
    out = tmp_path / "bursts.json"
    names = ["native", "isolated-tensor"]
    rows = bursts.measure(
        argparse.Namespace(rounds=2, allocators=names, counts=[5], pause_ms=0.0, out=out)
    )
    assert [line.split()[1] for line in no_processes] == [*names, *reversed(names)]
    assert json.loads(out.read_text())["rows"] == rows
    assert bursts.least(rows, "native", 5) == 20.0
    assert bursts.least(rows, "isolated-tensor", 5) == 9.0
    assert bursts.table([*rows, {"allocator": "strict", "error": "boom"}], [5]).row_count == 3


def test_a_worker_that_fails_is_a_row(tmp_path: Path) -> None:
    row = host_process.run_worker("no_such_worker", "native", tmp_path / "x.so", [], 60.0)
    assert row["allocator"] == "native"
    assert "no_such_worker" in row["error"]
    assert row["error"].startswith("exit code 1: ")
    late = host_process.run_worker("no_such_worker", "native", tmp_path / "x.so", [], 0.001)
    assert late == {"allocator": "native", "error": "no end after 0 s"}


@pytest.mark.parametrize("then", ["time.sleep(60)", "sys.exit('boom')"])
def test_what_a_worker_had_measured_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str
) -> None:
    program = (
        "import sys, time; print('ROW {\"n\": 1}'); print('ROW {\"n\": 2}');"
        f" print('ROW {{', end='', flush=True); {then}"
    )
    monkeypatch.setattr(host_process, "command", lambda *_: [sys.executable, "-c", program])
    row = host_process.run_worker("w", "native", tmp_path / "x.so", [], 1.0)
    assert (row["allocator"], row["n"]) == ("native", 2)
    assert row["error"] in ("no end after 1 s", "exit code 1: boom")


@pytest.mark.torch
def test_what_cannot_be_compiled_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(compiled_loops.CompilationError, match="Install g") as failure:
        compiled_loops.compile_loops("scale", tmp_path)
    assert len(str(failure.value).splitlines()) == 3


def test_the_histogram_knows_values_to_a_sixtieth(tmp_path: Path) -> None:
    program = tmp_path / "program.cpp"
    program.write_text(
        """
        #include <cstdio>
        #include "histogram.h"
        int main() {
            static loops::Histogram counts;
            for (int value = 1; value <= 100000; ++value) { counts.add(value); }
            for (double part : {0.00002, 0.5, 0.99, 0.9999, 1.0}) {
                std::printf("%.1f ", counts.quantile(part));
            }
            counts.add(~0ULL);
            std::printf("%.4g %d", counts.quantile(1), static_cast<int>(counts.total()));
        }
        """
    )
    command = ["g++", "-std=c++20", f"-I{BENCHMARKS}", str(program), "-o", str(tmp_path / "run")]
    subprocess.run(command, check=True)
    done = subprocess.run([tmp_path / "run"], check=True, capture_output=True, text=True)
    *found, count = (float(word) for word in done.stdout.split())
    expected = [2, 50_000, 99_000, 99_990, 100_000, 2.0**64]
    assert found == pytest.approx(expected, rel=1 / 64)
    assert count == 100_001


def points(factor: float, power: float, numbers: tuple[int, ...] = (1, 10, 100, 1000)) -> Any:
    return [[number, factor * number**power, 0.0] for number in numbers]


def scale_row(allocator: str, **more: Any) -> curves.Row:
    return {"allocator": allocator, "round": 0, "curves": {"live small": points(50.0, 0.5)}} | more


def test_the_exponent_is_the_slope_of_the_logarithms() -> None:
    (found,) = curves.curves([scale_row("native")], "native").values()
    assert curves.exponent(found) == pytest.approx(0.5)
    bent = [*found[:3], (1000, 10 * found[2][1])]
    assert curves.exponent(bent) == pytest.approx(0.65)
    assert [slope for _, slope in curves.slopes(bent)] == pytest.approx([0.5, 0.5, 1.0])
    assert curves.exponent([(1, 0.0), (2, 5.0)]) is None  # no logarithm of the first


def test_several_runs_give_the_median_curve() -> None:
    others = [scale_row("native", curves={"live small": points(f, 0.5)}) for f in (10.0, 70.0)]
    found = curves.curves([scale_row("native"), *others], "native")
    assert found["live small"][0] == (1, 50.0)


def test_the_table_of_curves_shows_ends_exponents_and_what_is_missing() -> None:
    reasons = ["live large 10,000 and more: 9.0 GB more, 1.0 GB free"]
    rows = [scale_row("native", left_out=reasons), scale_row("paged", curves={}), LAST_WORDS]
    assert curves.render(rows).splitlines() == [
        "| cost | counted | native | paged | rmm-pool |",
        "|---|---|---|---|---|",
        "| live small, ns a pair | live blocks, 1 → 1,000 | 50 → 1,581, 0.50 | – | – |",
        "",
        curves.HOW_TO_READ,
        "rmm-pool: boom.",
        f"Left out, native: {reasons[0]}.",
    ]


def test_a_curve_that_ends_early_says_where() -> None:
    short = scale_row("cudaMallocAsync", curves={"live small": points(50.0, 0.5, (10, 100))})
    line = curves.render([scale_row("native"), short]).splitlines()[2]
    assert line.endswith("| 50 → 1,581, 0.50 | 158 at 10 → 500 at 100, 0.50 |")


def test_only_steep_curves_of_ours_are_named() -> None:
    flat = {"live small": points(50.0, 0.09), "held trim": points(1.0, 1.0)}
    flat |= {"streams 4K": [*points(50.0, 0.2)[:3], [1000, 300.0]]}
    rows = [scale_row("native"), scale_row("paged@bridge", curves=flat)]
    assert curves.steep(rows) == ["paged@bridge, streams 4K: exponent 0.25, 0.38 from 100 on"]


def test_curves_are_drawn(tmp_path: Path) -> None:
    rows = [scale_row("native"), scale_row("paged", curves={"streams idle": [[1, 0.0], [2, 3.0]]})]
    picture = tmp_path / "made" / "scale.png"
    curves.draw(rows, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The loops of both programs, compiled at the same time."""
    folder = tmp_path_factory.mktemp("loops")
    names = ("host_cost", "scale")
    with ThreadPoolExecutor() as pool:
        made = pool.map(compiled_loops.compile_loops, names, [folder] * len(names))
        return dict(zip(names, made, strict=True))


def run_in_process(machine: Machine, root: Path, worker: str, arguments: list[str]) -> Any:
    done = machine.run(
        f"""
        import sys
        sys.path.insert(0, {str(root)!r})
        sys.argv = {[worker, *arguments]!r}
        from benchmarks.host import {worker}
        {worker}.main()
        """
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return json.loads(lines[-1][4:])


STOCK_LACKS = {"getDeviceStats", *(f"history {name}" for name in CONTEXTS)}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("allocator", "lacks"),
    [("native", set()), ("paged@stock", STOCK_LACKS), ("paged@bridge", set())],
)
def test_host_costs_are_measured(
    machine: Machine, root: Path, libraries: dict[str, Path], allocator: str, lacks: set[str]
) -> None:
    arguments = ["--allocator", allocator, "--library", str(libraries["host_cost"])]
    arguments += ["--pairs", "64", "--tries", "1", "--holes", "50"]
    row = run_in_process(machine, root, "host_cost_worker", arguments)
    assert row["door"] == (allocator.partition("@")[2] or None)
    assert {kind for kind, ns in row["ns"].items() if ns is None} == lacks
    assert row["holes"] == 50
    assert row["at_least"] == []
    assert row["ns"]["pair 64M, holes"] > 0
    for call in ("allocate 512", "free 64M, holes", "allocate mixed"):
        found = [row["ns"][f"{call} {each}"] for each in PERCENTILES]
        assert 0 < found[0] <= found[1] <= found[2]


@pytest.mark.torch
@pytest.mark.parametrize("allocator", ["native", "isolated-tensor"])
def test_bursts_are_measured(machine: Machine, root: Path, allocator: str) -> None:
    arguments = ["--allocator", allocator, "--counts", "3,7", "--pause-ms", "0"]
    row = run_in_process(machine, root, "bursts_worker", arguments)
    assert set(row["us"]) == {"3", "7"}
    assert all(us > 0 for us in row["us"].values())
    assert (row["door"] is None) == (allocator == "native")


@pytest.mark.torch
@pytest.mark.parametrize("allocator", ["native", "paged@bridge"])
def test_curves_are_measured(
    machine: Machine, root: Path, libraries: dict[str, Path], allocator: str
) -> None:
    arguments = ["--allocator", allocator, "--library", str(libraries["scale"])]
    limits = ["--point-seconds", "0.001", "--live", "3162", "--streams", "2", "--threads", "2"]
    row = run_in_process(machine, root, "scale_worker", [*arguments, *limits, "--gb", "32"])
    found = row["curves"]
    assert [number for number, *_ in found["live medium"]] == [1000, 3162]
    assert [number for number, *_ in found["streams 4K"]] == [1, 2]
    assert set(found) == {
        *("live small", "live medium", "live large", "held pair", "held trim", "held growth"),
        *("streams 4K", "streams 2M", "streams idle"),
        *(f"threads {size}, {kind} stream" for size in ("4K", "2M") for kind in ("own", "one")),
    }
    cores = len(os.sched_getaffinity(0))
    assert [n for n, *_ in found["threads 4K, one stream"]] == [n for n in (1, 2) if n <= cores]
    assert all(point[1] > 0 for points in found.values() for point in points)
    assert any(reason.startswith("threads") for reason in row["left_out"]) == (cores < 2)
    if machine.kind == "rig":  # its card has 16 GiB
        assert any(reason.startswith("held 32 GB and more: ") for reason in row["left_out"])
        assert [number for number, *_ in found["held pair"]] == [1, 2, 4, 8, 16]
