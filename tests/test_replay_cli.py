"""The command line: the report's form, exit codes, one line for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumem_alloc.trace import read_trace
from tests.patterns import PATTERNS, rmm_log
from tests.recorded import trace_path

CALLS = {
    "create",
    "map",
    "set_access",
    "unmap",
    "release",
    "malloc",
    "free",
    "event",
    "wait",
    "synchronize",
    "fill",
    "check",
}
GNN = str(trace_path("gnn"))
PREFETCH = str(trace_path("prefetch_train"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpumem_alloc", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def report(*arguments: str, code: int = 0) -> dict[str, Any]:
    process = run("replay", *arguments, "--json")
    assert process.returncode == code, process.stderr
    content: dict[str, Any] = json.loads(process.stdout)
    return content


def test_the_readme_shows_what_is_printed(root: Path) -> None:
    command = "python -m gpumem_alloc replay benchmarks/traces/gnn.pickle.gz"
    _, _, after = (root / "README.md").read_text().partition(f"$ {command}\n")
    shown = [line.rstrip() for line in after.partition("```")[0].splitlines()]
    printed = [line.rstrip() for line in run("replay", GNN).stdout.splitlines()]
    assert shown == printed[: len(shown)]
    assert not any(printed[len(shown) :])


def test_the_report_has_the_documented_form() -> None:
    content = report(PREFETCH, "--repeat", "2")
    assert set(content) == {
        "trace",
        "device",
        "events",
        "skipped_frees",
        "peak_live_bytes",
        "results",
    }
    assert (content["trace"], content["device"], content["events"]) == (PREFETCH, 0, 7487)
    names = [result["allocator"] for result in content["results"]]
    assert names == ["native", "native-expandable", "split", "paged"]
    for result in content["results"]:
        assert set(result) == {
            "allocator",
            "options",
            "peak_reserved_bytes",
            "end_reserved_bytes",
            "end_live_bytes",
            "utilization",
            "driver_calls",
            "driver_calls_second_half",
            "driver_ms",
            "driver_ms_second_half",
            "alloc_retries",
            "oom",
            "rounds",
            "replay_seconds",
        }
        assert set(result["driver_calls"]) == set(result["driver_calls_second_half"]) == CALLS
        assert result["oom"] is None
        assert len(result["rounds"]) == 2
        assert result["utilization"] == pytest.approx(
            content["peak_live_bytes"] / result["peak_reserved_bytes"]
        )
        assert result["peak_reserved_bytes"] == max(
            one["peak_reserved_bytes"] for one in result["rounds"]
        )
        for name in CALLS:
            assert 0 <= result["driver_calls_second_half"][name] <= result["driver_calls"][name]
        assert 0 <= result["driver_ms_second_half"] <= result["driver_ms"]


def test_options_and_repeated_allocators_are_reported_as_given() -> None:
    spec = "native:max_split_size_mb=64;garbage_collection_threshold=0.5"
    content = report(GNN, "--allocator", spec, "--allocator", "native")
    assert [result["options"] for result in content["results"]] == [
        {"max_split_size_mb": "64", "garbage_collection_threshold": "0.5"},
        {},
    ]
    assert (
        content["results"][0]["peak_reserved_bytes"] > content["results"][1]["peak_reserved_bytes"]
    )


def test_out_of_memory_is_exit_code_3_with_and_without_json() -> None:
    content = report(
        GNN, "--allocator", "native", "--allocator", "paged", "--limit", "4GiB", code=3
    )
    for result in content["results"]:
        oom = result["oom"]
        assert set(oom) == {"event", "requested_bytes", "reserved_bytes", "live_bytes"}
        assert oom["live_bytes"] <= oom["reserved_bytes"] <= 4 << 30
        assert 0 < oom["event"] < content["events"]
    process = run("replay", GNN, "--allocator", "native", "--limit", str(4 << 30))
    assert process.returncode == 3
    assert "ran out of memory at event" in process.stdout


def test_a_table_without_json() -> None:
    process = run("replay", GNN, "--allocator", "native", "--allocator", "paged")
    assert process.returncode == 0
    assert "53,168" in process.stdout
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["replay", "nothing.pickle"], "No such file"),
        (["replay", GNN, "--allocator", "pagd"], "nearest is 'paged'"),
        (["replay", GNN, "--allocator", "paged:slack=1"], "slack"),
        (["replay", GNN, "--limit", "3 parsecs"], "no amount of memory"),
        (["replay", GNN, "--limit", "0"], "--limit"),
        (["replay", GNN, "--limit", "-1"], "no amount of memory"),
        (["replay", GNN, "--repeat", "0"], "number of rounds"),
        (["replay", GNN, "--repeat", "many"], "--repeat"),
        (["replay", GNN, "--gpu-lag", "-1"], "lag"),
        (["replay", GNN, "--gpu-lag", "nan"], "lag"),
        (["replay", GNN, "--device", "4"], "no events of device 4"),
        (["replay"], "Missing argument"),
        (["replay", GNN, "--jsn"], "--jsn"),
        (["rpelay", GNN], "rpelay"),
        (["convert", GNN, "no/such/folder/file"], "No such file"),
        (["record", "-o", "out", "no_such_script.py"], "no such script"),
        (["microbench", "--seconds", "0"], "--seconds"),
        (["microbench", "--options", "slac:1"], "slac"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], reason: str) -> None:
    process = run(*arguments)
    assert process.returncode == 2
    assert process.stdout == ""
    assert len(process.stderr.splitlines()) == 1, process.stderr
    assert reason in process.stderr


def test_a_converted_file_replays_the_same(tmp_path: Path) -> None:
    target = tmp_path / "run.trace"
    assert run("convert", PREFETCH, str(target)).returncode == 0
    assert (read_trace(target).events == read_trace(PREFETCH).events).all()

    def comparable(path: str) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = report(path, "--allocator", "native")["results"]
        return [{**result, "replay_seconds": 0} for result in results]

    assert comparable(str(target)) == comparable(PREFETCH)


def test_an_rmm_log_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(rmm_log(PATTERNS["big_small_big"]()))
    content = report(str(path))
    assert content["events"] == 4
    assert content["peak_live_bytes"] == 4098 << 20


def test_the_microbenchmark_has_the_documented_form() -> None:
    process = run("microbench", "--json", "--seconds", "0.001")
    assert process.returncode == 0, process.stderr
    content = json.loads(process.stdout)
    sizes = {"512", "4096", "65536", "1048576", "4194304", "67108864"}
    assert set(content["malloc_pair_ns"]) == set(content["pair_ns"]) == sizes
    assert set(content["pair_ns_live"]) == {"10000", "1000000"}
    assert set(content["threads"]) == {"1", "2", "4", "8"}
    assert all(ns > 0 for table in content.values() for ns in table.values())
