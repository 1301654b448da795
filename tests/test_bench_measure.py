"""What a benchmark measures with: allocators by name, worker processes, the card, the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.allocators import ALLOCATORS, NATIVES, choose, find, put_in_place
from benchmarks.workers import card_memory, environment, process
from benchmarks.workers.children import import_path
from benchmarks.workers.driver_calls import DriverCalls
from benchmarks.workers.job import Job, Row
from benchmarks.workers.worker import failure, statistics
from benchmarks.workloads import WORKLOADS
from tests.rig.machine import Machine

JOB = Job("buffers", "native")

# --- allocators -----------------------------------------------------------------------------------


def test_each_allocator_gets_its_own_settings() -> None:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "GPUMEM_ALLOC_CONF": "x:1"}
    assert choose("native", environment) is None
    assert environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert choose("expandable", environment) is None
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert choose("no-caching", environment) is None
    assert environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    assert choose("cudaMallocAsync", environment) is None
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "backend:cudaMallocAsync"
    assert choose("paged:slack_percent=1;max_chunk_mb=32", environment) == "auto"
    assert environment == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUMEM_ALLOC_CONF": "strategy:paged,slack_percent:1,max_chunk_mb:32",
    }
    assert choose("paged-lean:max_chunk_mb=4@stock", environment) == "stock"
    assert environment["GPUMEM_ALLOC_CONF"] == "strategy:paged,preset:lean,max_chunk_mb:4"
    assert choose("split64@bridge", environment) == "bridge"
    assert environment["GPUMEM_ALLOC_CONF"] == "strategy:split,max_split_size_mb:64"


def test_the_table_has_every_allocator_once_and_a_label_of_its_own() -> None:
    assert len({each.label for each in ALLOCATORS.values()}) == len(ALLOCATORS) == 27
    assert {"native-split512", "native-roundup8", "native-gc80", "expandable"} < set(NATIVES)
    families = [each.family for each in ALLOCATORS.values()]
    assert [families.count(name) for name in ("pytorch", "rmm", "ours", "tool")] == [10, 3, 13, 1]
    assert find("paged-fast@bridge").label == "ours, paged, preset fast, bridge"
    for name in ALLOCATORS:
        choose(name, {})  # its settings are ones that we take


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("paged@window", "no door 'window'; there are auto, stock, bridge"),
        ("pagd", "no allocator 'pagd'; near it is paged, "),
        ("zzz", "no allocator 'zzz'; there are native, "),
        ("expandable@stock", "only ours take options or a door, and expandable is not"),
        ("paged:slack_percent=-1", "slack_percent"),
        ("split:max_splitsize_mb=64", "max_split_size_mb"),
    ],
)
def test_names_that_mean_nothing_are_refused(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        find(name)


def test_a_worker_of_pytorchs_is_free_of_us(root: Path) -> None:
    code = (
        "import sys, benchmarks.workers.worker as w; w.find('native');"
        " print('gpumem_alloc' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_garbage_collection_needs_a_limit_and_gets_the_whole_card() -> None:
    asked: list[float] = []
    torch = SimpleNamespace(cuda=SimpleNamespace(set_per_process_memory_fraction=asked.append))
    assert put_in_place(torch, "native-gc80") is None
    assert put_in_place(torch, "native") is None
    assert asked == [1.0]


def test_rmm_is_put_in_place_after_its_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    rmm = SimpleNamespace(
        reinitialize=lambda **options: done.append(options),
        mr=SimpleNamespace(
            CudaMemoryResource=lambda: "cuda",
            ArenaMemoryResource=lambda upstream: ("arena", upstream),
            CudaAsyncMemoryResource=lambda: "async",
            set_current_device_resource=done.append,
        ),
    )
    memory = SimpleNamespace(change_current_allocator=done.append)
    torch = SimpleNamespace(cuda=SimpleNamespace(memory=memory))
    door = SimpleNamespace(rmm_torch_allocator="door")
    monkeypatch.setitem(sys.modules, "rmm", rmm)
    monkeypatch.setitem(sys.modules, "rmm.allocators.torch", door)
    for name in ("rmm-pool", "rmm-arena", "rmm-async"):
        assert put_in_place(torch, name) is None
    pool = {"pool_allocator": True, "initial_pool_size": 256 << 20}
    assert done == [pool, "door", ("arena", "cuda"), "door", "async", "door"]


def test_what_an_allocator_lacks_is_what_pip_is_asked_for() -> None:
    assert find("paged").missing == []
    absent = ALLOCATORS["rmm-pool"].__class__(
        "x", "x", "rmm", modules=("no_such",), requires=("a",)
    )
    assert absent.missing == ["a"]


# --- jobs and processes ---------------------------------------------------------------------------


def test_a_job_comes_back_from_its_text() -> None:
    job = Job("gnn", "paged:slack_percent=1@stock", 3, size=7, turns=True, driver_calls=True)
    assert Job.from_json(job.to_json()) == job
    with pytest.raises(TypeError):
        Job.from_json('{"workload": "gnn", "allocator": "paged", "stepz": 1}')


def child(code: str, job: Job = JOB) -> process.Process:
    """A worker that does as told: `say` is defined, `wait` returns at GO."""
    begin = "import os, sys, time\nsay = lambda *t: print(*t, flush=True)\nwait = input\n"
    words = [sys.executable, "-S", "-c", begin + textwrap.dedent(code)]
    return process.Process(job, words, dict(os.environ))


def outcome(code: str, seconds: float = 20.0) -> Row:
    made = child(code)
    if made.wait_ready(seconds):
        made.go()
    row = made.finish(seconds)
    assert row["workload"] == "buffers"
    return row


def test_a_row_is_found_between_anything() -> None:
    noise = "say('ROWS', 'READYish'); say('\\0\\0\\n', 'x' * 100_000); os.write(1, b'\\xff\\n')"
    found = outcome(f"{noise}\nsay('READY'); wait(); {noise}\nsay('ROW', '{{\"run_s\": 1.5}}')")
    assert found == JOB.row() | {"card": None, "driver": None, "run_s": 1.5}


SANITIZED = """
say('========= COMPUTE-SANITIZER'); say('READY'); wait(); say('========= Invalid __global__ read')
say('=========     at f(int*)'); say('ROW {{"run_s": 1.5}}')
say('========= ERROR SUMMARY: {errors} errors'); sys.exit({code})
"""


def test_a_tools_lines_between_ours_are_no_row() -> None:
    assert "error" not in outcome(SANITIZED.format(errors=0, code=0))


def test_what_a_tool_found_is_the_runs_error() -> None:
    assert outcome(SANITIZED.format(errors=3, code=9))["error"] == (
        "exit code 9: ========= COMPUTE-SANITIZER | ========= Invalid __global__ read | "
        "========= ERROR SUMMARY: 3 errors"
    )


def test_remarks_are_passed_on_once(capsys: pytest.CaptureFixture[str]) -> None:
    remark = f"driver calls: not counted: {time.monotonic()}"
    code = f"say({remark!r}, file=sys.stderr); say('other', file=sys.stderr)"
    for _ in range(2):
        outcome(code.replace("say(", "print(") + "\nsay('READY'); wait(); say('ROW {}')")
    assert capsys.readouterr().err == remark + "\n"


def test_full_pipes_hold_nobody_up() -> None:
    fill = "sys.stderr.write('e' * 300_000 + '\\n'); say('o' * 300_000)"
    found = outcome(f"{fill}\nsay('READY'); wait()\n{fill}\nsay('ROW {{}}')")
    assert "error" not in found


@pytest.mark.parametrize(
    ("code", "error", "out_of_memory"),
    [
        ("sys.exit('no module named x')", "exit code 1: no module named x", False),
        ("say('READY'); wait(); sys.exit('CUDA error: out of memory')",
         "exit code 1: CUDA error: out of memory", True),
        ("say('READY'); wait(); os.kill(os.getpid(), 9)", "ended by signal 9", False),
        ("say('READY'); wait()", "ended without a row", False),
        ("say('READY'); wait(); say('ROW {broken')", "ended without a row", False),
        ("say('READY'); wait(); say('ROW {}'); sys.exit('bad end')", "exit code 1: bad end", False),
        ("say('READY'); wait(); say('ROW', '{\"error\": \"E: x\"}'); sys.exit(1)", "E: x", None),
    ],
)  # fmt: skip
def test_a_failure_is_one_line(code: str, error: str, out_of_memory: bool | None) -> None:
    found = outcome(code)
    assert found["error"] == error
    assert found.get("out_of_memory") is out_of_memory
    assert found["card"] is None  # no figure, where the job asked for one


def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = "time.sleep(600)"
    assert outcome(hangs, 0.2)["error"] == "no end after 0 s"
    assert outcome(f"say('READY'); {hangs}", 0.5)["error"].startswith("no end after")
    monkeypatch.setattr(process, "END_SECONDS", 0.2)
    found = outcome(f"say('READY'); wait(); say('ROW {{}}'); {hangs}")
    assert found["error"] == "alive 0.2 s after its last word"


def has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(is_so: Callable[[], bool]) -> None:
    """The kernel may take a moment to end what is killed."""
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_worker_started_ends_with_it() -> None:
    made = child(
        """
        if os.fork() == 0:
            time.sleep(600)  # holds the pipes open too
        say("READY")
        wait()
        say("ROW {}")
        """
    )
    group = made._child.pid
    assert made.wait_ready(20)
    made.go()
    begin = time.monotonic()
    assert "error" not in made.finish(20)
    assert time.monotonic() - begin < process.READER_SECONDS
    wait_until(lambda: not has_members(group))


def test_turns_are_taken_one_by_one() -> None:
    made = child(
        """
        say("READY"); wait(); say("STARTED")
        for step in range(3):
            wait()
            say("STEP", step, 1.5)
        wait()
        say("ROW {}")
        """,
        Job("buffers", "native", turns=True),
    )
    assert made.wait_ready(20)
    made.go()
    assert made.wait_started(20)
    assert made.step(0.1) is None  # nothing runs before its turn
    assert [made.turn(20) for _ in range(3)] == [(0, 1.5), (1, 1.5), (2, 1.5)]
    assert made.turn(20) is None
    assert "error" not in made.finish(20)
    made.go()  # to one that has ended: nothing happens
    made.kill()


def test_a_worker_whose_runner_is_killed_ends() -> None:
    code = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "from benchmarks.workers.worker import *; "
            "c = Channel(); c.say('here'); c.wait_for_go()"], stdin=subprocess.PIPE)
        print(child.pid, flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": import_path()},
    ) as runner:  # fmt: skip
        assert runner.stdout is not None
        pid = int(runner.stdout.readline())
        assert runner.stdout.readline() == "here\n"
        runner.kill()
        assert runner.stdout.read() == ""  # ends only when the worker has ended too
    assert not Path(f"/proc/{pid}/fd/0").exists()


def test_failures_say_whether_memory_ran_out() -> None:
    assert failure(ValueError("a\n\n  b ")) == {
        "error": "ValueError: a | b",
        "out_of_memory": False,
    }
    assert failure(MemoryError("std::bad_alloc"))["out_of_memory"]
    assert failure(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling x"))["out_of_memory"]
    assert len(failure(RuntimeError("x" * 10_000))["error"]) <= 600


def test_figures_that_are_not_told_are_null() -> None:
    def torch(stats: dict[str, int] | None) -> Any:
        def memory_stats() -> dict[str, int]:
            if stats is None:
                raise RuntimeError("does not yet support getDeviceStats")
            return stats

        return SimpleNamespace(cuda=SimpleNamespace(memory_stats=memory_stats))

    stats = {
        "allocated_bytes.all.peak": 3, "requested_bytes.all.peak": 2, "reserved_bytes.all.peak": 4,
        "allocation.all.allocated": 5, "num_alloc_retries": 0, "num_ooms": 0,
    }  # fmt: skip
    told = statistics(torch(stats))
    assert list(told.values()) == [3, 2, 4, 5, 0, 0]
    as_async = stats | {"requested_bytes.all.peak": 0, "allocation.all.allocated": 0}
    assert list(statistics(torch(as_async)).values()) == [3, None, 4, None, None, None]
    assert set(statistics(torch(None)).values()) == {None}
    assert set(statistics(torch(dict.fromkeys(stats, 0))).values()) == {None}


# --- workers on the stand-in card -----------------------------------------------------------------

WORKER = """
import os, sys
from benchmarks.workers import worker
reader, writer = os.pipe()
os.write(writer, b"GO\\n")
os.dup2(reader, 0)
sys.argv = ["worker", "--job", {job!r}]
sys.exit(worker.main())
"""


def row_of(machine: Machine, root: Path, job: Job, **env: str) -> Row:
    """Run a worker in a process that has torch already; a failure is a row too."""
    code = f"import sys\nsys.path.insert(0, {str(root)!r})\n" + WORKER.format(job=job.to_json())
    done = machine.run(code, check=False, env={"PYTHONPATH": import_path(), **env})
    lines = done.stdout.splitlines()
    assert lines[0] == "READY", done.stderr
    (line,) = [line for line in lines if line.startswith("ROW ")]
    assert line == lines[-1]
    row: Row = job.row() | json.loads(line[4:])
    assert done.returncode == ("error" in row)
    return row


@pytest.mark.torch
@pytest.mark.parametrize(
    "job",
    [
        Job("buffers", "native", steps=6, deterministic=True),
        Job("buffers", "paged", steps=6, driver_calls=True),
        Job("buffers", "split:max_split_size_mb=64@stock", steps=6),
    ],
    ids=lambda job: str(job.allocator),
)
def test_a_worker_reports_one_row(machine: Machine, root: Path, job: Job) -> None:
    row = row_of(machine, root, job)
    assert {name: row[name] for name in job.row()} | {"card": True} == job.row()
    assert len(row["step_ms"]) == len(row["losses"]) == 6
    assert row["code_id"] == WORKLOADS["buffers"].code_id
    assert 0 < row["requested_peak_bytes"] <= row["live_peak_bytes"] <= row["reserved_peak_bytes"]
    assert row["allocations"] > 100
    assert row["ooms"] == row["alloc_retries"] == 0
    assert ("counters" in row) == ("door" in row) == (job.allocator != "native")
    assert "@" not in job.allocator or row["door"] == "stock"
    assert row["card"]["polls_per_second"] > 0
    assert 1 <= len(row["card"]["timeline"]) <= 300
    if machine.kind == "gpu":  # the stand-in card is another one in each process
        assert row["card"]["peak_bytes"] > row["reserved_peak_bytes"]
        assert (row["driver"] is not None) == job.driver_calls
        assert not job.driver_calls or row["driver"]["calls"]["cuMemCreate"] > 0
    else:
        assert row["driver"] is None  # not asked for, or no CUPTI


@pytest.mark.torch
def test_a_worker_tells_that_memory_ran_out(machine: Machine, root: Path) -> None:
    row = row_of(machine, root, Job("buffers", "paged:limit_mb=64", steps=6, card=False))
    assert row["error"].startswith("OutOfMemoryError: ")
    assert row["out_of_memory"]
    row = row_of(machine, root, Job("buffers", "native", size=1, card=False))
    assert row["error"] == "ValueError: buffers has no size that could be set"
    assert not row["out_of_memory"]


@pytest.mark.torch
def test_a_worker_takes_turns(machine: Machine, root: Path) -> None:
    done = machine.run(
        f"""
        import json, os, sys
        sys.path.insert(0, {str(root)!r})
        from benchmarks.workers.job import Job
        from benchmarks.workers.process import start
        worker = start(Job("buffers", "expandable", steps=3, turns=True))
        assert worker.wait_ready(60)
        worker.go()
        assert worker.wait_started(60)
        turns = [worker.turn()]
        free = os.sched_getaffinity(worker.pid)
        worker.stay_on(1 << 20)  # one that no machine has
        turns += [worker.turn()]
        core = max(free)
        worker.stay_on(core)
        turns += [worker.turn()]
        kept = os.sched_getaffinity(worker.pid) == {{core}}
        print(json.dumps([turns, core, kept, worker.finish(60)]))
        """
    )
    turns, core, kept, row = json.loads(done.stdout)
    assert kept
    assert row["core"] == core
    assert [index for index, _ in turns] == [0, 1, 2]
    assert "error" not in row, row
    assert row["step_ms"] == [ms for _, ms in turns]
    assert row["card"]["source"] == "nvml"


# --- the card -------------------------------------------------------------------------------------


def test_a_timeline_keeps_its_peaks_whatever_its_length() -> None:
    for count in (1, 299, 300, 301, 40_000):
        timeline = card_memory.Timeline(points=300, bucket_ms=10.0)
        values = [(at * 7919) % 10_007 for at in range(count)]
        for at, value in enumerate(values):
            timeline.add(at * 10.0, value)
        points = timeline.points()
        assert min(count, 150) <= len(points) <= 300
        assert max(value for _, value in points) == max(values)
        assert [ms for ms, _ in points] == sorted(ms for ms, _ in points)
        assert all(values[round(ms / 10)] == value for ms, value in points)


def test_polling_is_above_what_was_used_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    used = iter([1000, 900, 1200, 1500])
    over = iter([False, False, True])
    seen = card_memory.poll("nvml", lambda: next(used), lambda: next(over))
    assert capsys.readouterr().out == "begun\n"  # the base is taken
    assert (seen.source, seen.start_bytes, seen.peak_bytes) == ("nvml", 1000, 500)
    assert max(used for _, used in seen.timeline) == 500


def test_a_card_that_cannot_be_asked_is_none() -> None:
    with card_memory.CardMemory(99) as card:
        assert os.getsid(card._child.pid) == card._child.pid  # a terminal's Ctrl-C is not for it
        card.begin()
    assert card.seen is None
    with card_memory.CardMemory(99) as card:
        pass  # a worker that fails before GO
    assert card.seen is None


@pytest.mark.torch
def test_polling_lasts_from_its_begin_to_its_end(machine: Machine, root: Path) -> None:
    done = machine.run(
        f"""
        import json, sys, time
        sys.path.insert(0, {str(root)!r})
        from benchmarks.workers.card_memory import CardMemory
        with CardMemory(0) as card:
            card.wait_ready()
            time.sleep(0.3)
            begin = time.perf_counter()
            card.begin()
            time.sleep(0.2)
        print(json.dumps([card.seen.timeline, 1e3 * (time.perf_counter() - begin)]))
        """
    )
    timeline, longest_ms = json.loads(done.stdout)
    assert timeline[0][0] < 10.0  # the first bucket
    assert 190.0 <= timeline[-1][0] <= longest_ms


def test_nvml_is_asked_for_the_card_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetHandleByUUID=lambda name: name
    )
    for visible, first in {"": 0, "3,1": 3, " 2 ": 2, "GPU-aa-bb,1": "GPU-aa-bb"}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert card_memory.nvml_handle(nvml, 0) == first
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert card_memory.nvml_handle(nvml, 1) == 1


def test_the_poller_ends_with_whoever_asked(rig: Machine, root: Path) -> None:
    code = f"""
        import os, sys
        sys.path.insert(0, {str(root)!r})
        from benchmarks.workers.card_memory import CardMemory
        card = CardMemory(0).__enter__()
        card.begin()
        print(card._child.pid, flush=True)
        os.kill(os.getpid(), {signal.SIGKILL.value})
    """
    done = rig.run_fresh(code, check=False)
    poller = Path(f"/proc/{int(done.stdout)}/fd/0")
    wait_until(lambda: not poller.exists())


# --- the driver's calls ---------------------------------------------------------------------------

FAKE_CUPTI = r"""
#include <cstdint>
#include <cstring>
struct Data { int site; const char* name; const void* parameters; void* result;
              const char* symbol; void* context; std::uint32_t uid; std::uint64_t* shared; };
using Callback = void (*)(void*, int, std::uint32_t, const void*);
const char* names[] = {"cuMemAlloc_v2", "cuMemAllocHost_v2", "cuMemFree_v2", "cuMemFreeAsync_ptsz",
                       "cuMemCreate", "cuCtxSynchronize_v2", "cuMemMapArrayAsync", "cuMemMap"};
constexpr std::uint32_t kFirst = 240, kCount = 8;
Callback callback; bool enabled[kCount]; int answer;
extern "C" {
int cuptiSubscribe(void**, Callback given, void*) { callback = given; return answer; }
int cuptiGetCallbackName(int domain, std::uint32_t id, const char** name) {
    if (domain != 1 || id < kFirst || id >= kFirst + kCount) { return 1; }
    *name = names[id - kFirst];
    return 0;
}
int cuptiEnableCallback(std::uint32_t on, void*, int domain, std::uint32_t id) {
    return domain == 1 && id - kFirst < kCount ? (enabled[id - kFirst] = on, 0) : 1;
}
void refuse(int result) { answer = result; }
// A call of the driver's; CUPTI does not clear what it shares.
void fake(const char* name) {
    for (std::uint32_t at = 0; at < kCount; ++at) {
        if (std::strcmp(name, names[at]) == 0 && enabled[at]) {
            std::uint64_t shared = 77;
            Data data{0, name, nullptr, nullptr, nullptr, nullptr, 0, &shared};
            callback(nullptr, 1, kFirst + at, &data);
            data.site = 1;
            callback(nullptr, 1, kFirst + at, &data);
        }
    }
}
}
"""


@pytest.mark.torch  # whose wheels bring CUPTI's headers, where there is no toolkit
def test_driver_calls_are_counted_by_name_and_half(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import ctypes

    source, library = tmp_path / "cupti.cpp", tmp_path / "cupti.so"
    source.write_text(FAKE_CUPTI)
    subprocess.run(["g++", "-shared", "-fPIC", "-w", source, "-o", library], check=True)
    cupti = ctypes.CDLL(str(library))
    driver = DriverCalls.build()
    assert driver is not None, capfd.readouterr().err

    def call(*names: str) -> None:
        for name in names:
            cupti.fake(name.encode())

    cupti.refuse(39)
    assert not driver.start([str(library), "not reached"])
    refused = "driver calls: not counted: cupti.so: cuptiSubscribe failed with CUptiResult 39\n"
    assert capfd.readouterr().err == refused
    cupti.refuse(0)
    assert driver.start([str(tmp_path / "absent.so"), str(library)])
    for step in range(4):
        call("cuMemAlloc_v2", "cuMemAllocHost_v2", "cuMemMapArrayAsync")
        call(*["cuMemFreeAsync_ptsz"] * step)
        with driver.step_ends():
            call("cuCtxSynchronize_v2", "cuMemFree_v2")
    call("cuCtxSynchronize_v2", "cuMemCreate")
    found = driver.figures()
    assert found["calls"] == {
        "cuMemAlloc": 4, "cuMemFreeAsync": 6, "cuMemCreate": 1, "cuCtxSynchronize": 1,
    }  # fmt: skip
    assert found["synchronisations"] == 1
    assert found["second_half_calls"] == 7  # steps 2 and 3, and nothing after the last one
    assert found["ms"].keys() == found["calls"].keys()
    assert 0 <= found["second_half_ms"] <= sum(found["ms"].values()) < 1000  # not from nothing


@pytest.mark.parametrize("absence", ["headers", "compiler"])
def test_without_cupti_there_is_a_line_and_no_figure(
    absence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if absence == "headers":
        monkeypatch.setattr("benchmarks.workers.driver_calls._toolkits", list)
        monkeypatch.setattr("benchmarks.workers.driver_calls._wheels_folders", lambda pattern: [])
    else:
        monkeypatch.setattr("benchmarks.workers.driver_calls.include_folders", list)
        monkeypatch.setenv("PATH", "")
    assert DriverCalls.build() is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("driver calls: not counted: ")


# --- the environment ------------------------------------------------------------------------------


@pytest.mark.torch
def test_the_environment_names_versions_and_no_place(
    machine: Machine, root: Path, tmp_path: Path
) -> None:
    done = machine.run(
        f"""
        import json, sys
        sys.path.insert(0, {str(root)!r})
        from benchmarks.workers.environment import environment
        print(json.dumps(environment()))
        """,
        env={"GMA_GIT_ID": "0123abc"},
    )
    found = json.loads(done.stdout)
    assert found["git_id"] == "0123abc"
    assert found["gpu_bytes"] > 0
    assert found["cuda"]
    assert "numpy" in found["libraries"]
    if machine.kind == "rig":
        assert found["gpu"] == "Rig card"
        assert found["power_limit_w"] is None  # its NVML does not tell
    else:
        assert found["driver"]
        assert found["max_sm_clock_mhz"] > 0
    assert str(Path.home()) not in done.stdout
    assert os.uname().nodename not in done.stdout.replace(found["kernel"], "")
    assert "/" not in done.stdout


def test_an_environment_whose_card_is_silent_has_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "command", lambda module: ["false"])
    found = environment.environment()
    assert found["gpu"] is None
    assert found["python"]
    assert capsys.readouterr().err.startswith("environment: the card was not asked: ")
