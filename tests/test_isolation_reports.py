"""Reports of faults: what a program leaves behind, and what explain-fault makes of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem_alloc import AllocatorError
from gpumem_alloc.cli import main
from gpumem_alloc.isolation import LedgerError, read_ledger, save_ledger
from gpumem_alloc.isolation.ledger import COLUMNS
from gpumem_alloc.isolation.stacks import of_rows, record_stacks
from tests.rig.machine import Machine, Run

# The stand-in's card fails where a memset goes to what is not mapped.
_PRELUDE = """
    import ctypes, os, signal, sys, threading, torch, gpumem_alloc, inside
    from gpumem_alloc import _C, isolation
    def write(address, count):
        memset = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
        place = ctypes.c_void_p(address), ctypes.c_ubyte(0x5A), ctypes.c_size_t(count)
        assert memset(*place, ctypes.c_void_p(0)) == 0
    def tensor(count=1000):
        return torch.empty(count, dtype=torch.uint8, device="cuda")
    def freed(count):
        gone = tensor(count)
        address = gone.data_ptr()
        del gone
        return address
    def use_after_free(count=50_000):
        write(freed(count) + 100, 4)
        torch.cuda.synchronize()
"""
_REPORT = "gpumem_alloc: a CUDA error was seen"


def program(machine: Machine, ledger: Path, code: str, level: str = "strict") -> Run:
    """Run a program in the no-sharing mode whatever it ends with."""
    enable = f'\n    gpumem_alloc.enable(isolation="{level}")\n'
    env = {"GPUMEM_ALLOC_LEDGER": str(ledger)}
    return machine.run(_PRELUDE + enable + code, check=False, env=env)


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit) as end:
        main(["explain-fault", *arguments, "--json"])
    assert end.value.code == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.torch
def test_a_fault_is_reported_and_explained(
    rig: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.json"
    run = program(rig, path, "    kept = tensor(1000)\n    use_after_free()\n")
    assert run.returncode == 1
    assert run.stderr.count("torch.AcceleratorError: CUDA error: an illegal memory access") == 1
    assert run.stderr.count(_REPORT) == 1
    assert f"python -m gpumem_alloc explain-fault {path}" in run.stderr
    assert "tensor 0:2, 50,000 bytes" in run.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.json"]
    ledger = read_ledger(path)
    assert ledger.error == "CUDA error: an illegal memory access was encountered"
    kept, gone = ledger.entries
    assert (kept.requested_bytes, gone.requested_bytes) == (1000, 50_000)
    assert (ledger.isolation, ledger.violations) == ("strict", [])

    guessed = explained(capsys, str(path))
    assert [one["allocation_number"] for one in guessed["candidates"]] == [2, 1]
    log = tmp_path / "log.txt"
    log.write_text(
        f"=== Invalid __global__ write of size 4 bytes\n===   at k(int*)+0x70 in bug.cu:6\n"
        f"===   Access to {gone.address + 100:#x} is out of bounds\n"
    )
    after = f"{kept.window_end - 1:#x}"
    found = explained(capsys, str(path), "--log", str(log), "--address", after)
    assert found["candidates"] == []
    in_guard, inside = found["faults"]
    assert (inside["relation"], inside["least_distance"]) == ("inside", 100)
    assert inside["tensor"]["state"] == "quarantined"
    assert "50,000 bytes, which is freed and unmapped: a use after free" in inside["sentence"]
    assert inside["kernel"] == "k(int*)+0x70 in bug.cu:6"
    assert (in_guard["relation"], in_guard["in_guard"]) == ("behind", True)
    assert in_guard["tensor"]["allocation_number"] == 1


@pytest.mark.torch
@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("try: use_after_free()\n    except RuntimeError: sys.exit(3)", 3),
        ("""try: use_after_free()
    except RuntimeError as error: raise KeyError(1 + 1) from error""", 1),
        ("""thread = threading.Thread(target=use_after_free)
    thread.start()
    thread.join()""", 0),
        ("write(freed(5000), 1)  # and nobody asks", 0),
    ],
)  # fmt: skip
def test_an_error_that_does_not_end_the_program_is_reported_too(
    rig: Machine, tmp_path: Path, code: str, exit_code: int
) -> None:
    run = program(rig, tmp_path / "ledger.json", f"    {code}\n")
    assert run.returncode == exit_code
    assert run.stderr.count(_REPORT) == 1
    assert run.stderr.count("KeyError: 2") == code.count("KeyError")
    assert read_ledger(tmp_path / "ledger.json").error is not None


@pytest.mark.torch
@pytest.mark.parametrize("level", ["packed", "tensor"])
def test_what_the_last_look_finds_is_reported(rig: Machine, tmp_path: Path, level: str) -> None:
    code = "    kept = [tensor(1000), tensor(2000)]\n    write(kept[1].data_ptr() + 2000, 3)\n"
    run = program(rig, tmp_path / "ledger.json", code, level)
    assert run.returncode == 0
    assert run.stderr.count("gpumem_alloc: overrun of a tensor of 1.95 KiB") == 1, run.stderr
    assert _REPORT not in run.stderr
    ledger = read_ledger(tmp_path / "ledger.json")
    (violation,) = ledger.violations
    assert violation["first_bad"] == ledger.entries[1].address + 2000
    assert (ledger.error, violation["found"][:6]) == (None, "5a5a5a")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("code", "exit_code", "shown"),
    [
        ("kept = tensor(); del kept", 0, ""),
        ("kept = tensor()\n    sys.exit(4)", 4, ""),
        ("kept = tensor()\n    raise KeyError('wrong')", 1, "KeyError: 'wrong'"),
        ("""kept = tensor()
    sys.excepthook = lambda *_: print("the program's own")
    raise KeyError""", 1, ""),
        ("""import warnings
    warnings.simplefilter("ignore")
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    gpumem_alloc.set_limit("64MiB")
    tensor(128 << 20)""", 1, "torch.OutOfMemoryError"),
        ("""kept = tensor()
    write(kept.data_ptr() + 1000, 1)
    raise KeyboardInterrupt""", -2, "KeyboardInterrupt"),
        ("""kept = tensor()
    child = os.fork()
    if child == 0: raise KeyError("of the child")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1""", 0, "of the child"),
    ],
)  # fmt: skip
def test_where_nothing_was_found_nothing_is_left(
    rig: Machine, tmp_path: Path, code: str, exit_code: int, shown: str
) -> None:
    run = program(rig, tmp_path / "ledger.json", f"    {code}\n")
    assert run.returncode == exit_code
    assert list(tmp_path.iterdir()) == []
    assert "gpumem_alloc:" not in run.stderr
    assert shown in run.stderr
    assert bool(shown) == bool(run.stderr)


@pytest.mark.torch
def test_a_ledger_that_cannot_be_written_fails_nothing(rig: Machine, tmp_path: Path) -> None:
    run = program(rig, tmp_path / "no" / "ledger.json", "    use_after_free()\n")
    assert run.returncode == 1
    assert run.stderr.count(_REPORT) == 1
    assert "could not be written: FileNotFoundError" in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
def test_it_can_be_switched_off_and_a_region_switches_it_on(rig: Machine, tmp_path: Path) -> None:
    code = """
    os.chdir({folder!r})
    gpumem_alloc.enable()
    with gpumem_alloc.isolated("strict"):
        kept = tensor()
    write(kept.data_ptr() + 1000, 1)
    """
    code = _PRELUDE + code.format(folder=str(tmp_path))
    run = rig.run(code, env={"GPUMEM_ALLOC_LEDGER": "off"})
    assert (run.stderr, list(tmp_path.iterdir())) == ("", [])
    run = rig.run(code, env={"GPUMEM_ALLOC_LEDGER": ""})
    (path,) = tmp_path.glob("gpumem_alloc-ledger-*.json")
    assert f"is in {path.name}" in run.stderr
    assert read_ledger(path).pid == int(path.stem.rpartition("-")[2])


@pytest.mark.torch
def test_stacks_come_along_through_the_bridge(bridged: Machine, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    code = """
    gpumem_alloc.enable(isolation="strict", door="bridge")
    before = tensor()
    isolation.record_stacks()
    def first():
        return tensor(1000)
    def second():
        address = freed(3000)
        assert _C.attack("poke", 0, 0, address, bytes=4, value=1).wait() == "fault"
        torch.cuda.synchronize()
    kept = first()
    write(kept.data_ptr() + 1000, 1)
    isolation.check()
    second()
    """
    env = {"GPUMEM_ALLOC_LEDGER": str(path)}
    run = bridged.run(_PRELUDE + code, check=False, env=env)
    assert run.returncode == 1
    ledger = read_ledger(path)
    assert set(ledger.stacks) == {(0, 2), (0, 3)}
    kept, gone = ledger.stacks[0, 2], ledger.stacks[0, 3]
    assert [frame.name for frame in kept["allocated"]][:3] == ["tensor", "first", "<module>"]
    assert kept["freed"] == []
    assert [frame.name for frame in gone["allocated"]][:3] == ["tensor", "freed", "second"]
    assert [frame.name for frame in gone["freed"]][:2] == ["freed", "second"]
    told = run.stderr.partition("gpumem_alloc: overrun")[2]
    assert f"It was made at {kept['allocated'][0]}.\n" in told
    assert f"; made at {gone['allocated'][0]}\n" in told


def test_the_newest_stack_of_an_address_is_taken() -> None:
    def event(action: str, address: int, line: int) -> dict[str, Any]:
        frame = {"filename": "a.py", "line": line, "name": "f"}
        return {"action": action, "addr": address, "frames": [frame] * 40}

    trace = [
        event("free_requested", 16, 1), event("alloc", 16, 2), event("free_requested", 16, 3),
        event("segment_map", 16, 4), event("alloc", 16, 5), event("free_completed", 16, 6),
    ]  # fmt: skip

    class Column(list[int]):
        tolist = list.copy

    rows = {"address": Column([16, 32]), "allocation_number": Column([8, 9])}
    assert list(of_rows(rows, trace)) == ["8"]
    both = of_rows(rows, trace)["8"]
    assert [frame.line for frame in both["allocated"]] == [5] * 32
    assert both["freed"] == []
    trace.append(event("free_requested", 16, 7))
    assert of_rows(rows, trace)["8"]["freed"][0].line == 7


def test_without_the_bridge_stacks_are_refused() -> None:
    with pytest.raises(AllocatorError, match="needs gpumem_alloc to serve CUDA memory through"):
        record_stacks()


# --- the file ----------------------------------------------------------------------------------


def content(count: int = 2) -> dict[str, Any]:
    """What a ledger of `count` tensors holds."""
    rows = [
        dict(zip(COLUMNS, [n << 22, 100, (n << 22) - 64, (n << 22) + 512, 0, n, 0, 5, 0, 0, 4],
                 strict=True))
        for n in range(1, count + 1)
    ]  # fmt: skip
    stacks = {"1": {"allocated": [["a.py", 3, "f"]], "freed": []}}
    device = {
        "device": 0,
        "shortcoming": "",
        "entries": [list(row.values()) for row in rows],
        "stacks": stacks,
    }
    return {
        "format": 1, "pid": 5, "written_at_ns": 10, "program": ["python"], "torch": "2.14.1",
        "isolation": "strict", "options": {"guard": "upper", "guard_alignment": 512},
        "error": None, "columns": COLUMNS, "devices": [device], "violations": [],
    }  # fmt: skip


def test_a_ledger_of_nothing_can_be_saved_and_read(tmp_path: Path) -> None:
    path = save_ledger(tmp_path / "ledger.json", error="why")
    assert path == tmp_path / "ledger.json"
    ledger = read_ledger(path)
    assert (ledger.entries, ledger.error, ledger.isolation) == ([], "why", "off")


@pytest.mark.torch
def test_a_large_ledger_is_compressed(rig: Machine, tmp_path: Path) -> None:
    rig.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(isolation="packed")
    kept = [tensor(100) for _ in range(10_001)]
    written = isolation.save_ledger({str(tmp_path / "ledger.json")!r})
    assert written.name == "ledger.json.gz", written
    read = isolation.read_ledger(written)
    rows = isolation.ledger()
    assert [one.address for one in read.entries] == rows["address"].tolist()
    assert [one.window_end for one in read.entries] == rows["window_end"].tolist()
    assert len(rows) == 10_001
    """
    )
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.json.gz"]


@given(st.data())
def test_a_damaged_ledger_is_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = json.dumps(content()).encode()
    if data.draw(st.booleans()):
        whole = gzip.compress(whole, mtime=0)
    at = data.draw(st.integers(0, len(whole) - 1))
    replacement = data.draw(st.binary(max_size=3))
    rest = whole[at + data.draw(st.integers(0, 3)) :] if data.draw(st.booleans()) else b""
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(whole[:at] + replacement + rest)
    text = ""
    try:
        read_ledger(path)  # some damage leaves a ledger
    except LedgerError as error:
        text = str(error)
    assert not text or len(text.splitlines()) == 3
    assert not text or text.startswith(f"{path} cannot be read as a ledger: ")


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2},
        {"columns": COLUMNS[:-1]},
        {
            "devices": [
                {"device": 0, "shortcoming": "", "entries": [[1] * 10 + ["x"]], "stacks": {}}
            ]
        },
        {"devices": [{"device": 0, "shortcoming": "", "entries": [[1] * 11], "stacks": [1]}]},
        {"devices": [{"device": 0, "shortcoming": "", "entries": [[9] * 11], "stacks": {}}]},
        {"violations": [{"kind": "overrun"}]},
        {"options": {}},
    ],
)
def test_a_ledger_with_a_wrong_part_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, Any]
) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps({**content(), **wrong}))
    with pytest.raises(SystemExit) as end:
        main(["explain-fault", str(path), "--address", "0x400100"])
    assert end.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


# --- the command -------------------------------------------------------------------------------


def test_the_tables_show_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, log = tmp_path / "ledger.json", tmp_path / "dmesg"
    path.write_text(json.dumps(content()))
    log.write_text(
        "NVRM: Xid (PCI:0000:01:00): 31, pid=77, name=python, channel 0x8, intr 0. MMU Fault: "
        "ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ 0x0_00400000. Fault is of type FAULT_PDE "
        "ACCESS_TYPE_VIRT_READ\n"
    )
    with pytest.raises(SystemExit):
        main(["explain-fault", str(path), "--log", str(log), "--address", "0x400065"])
    shown = capsys.readouterr().out
    for part in (
        "1 bytes behind the end of tensor 0:1 of 100 bytes",
        "the page 0x400000 (kernel log (Xid 31); read)",
        "the nearest tensors",
        "tensor 0:1 was allocated at, innermost first:\n  a.py:3 in f",
        "only the page is known",
        "process 77, the ledger 5",
    ):
        assert part in shown, shown


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--address", "tensor"], "not a hexadecimal address"),
        (["--address", "0x1" + "0" * 16], "not a hexadecimal address"),
        (["--log", "nowhere"], "nowhere cannot be read"),
        (["--core", "dump"], "cuda-gdb, which reads it, is not on PATH"),
    ],
)
def test_bad_arguments_are_told_in_three_lines(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    Path("dump").write_bytes(b"\x7fELF and more")
    with pytest.raises(SystemExit) as end:
        main(["explain-fault"])
    assert end.value.code == 2
    what, reason, action = capsys.readouterr().err.splitlines()
    assert "there is none in this folder" in what
    assert "GPUMEM_ALLOC_LEDGER" in reason
    assert "save_ledger()" in action
    Path("gpumem_alloc-ledger-1.json").write_text(json.dumps(content()))
    with pytest.raises(SystemExit) as end:
        main(["explain-fault", *arguments])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert why in told
    assert len(told.splitlines()) == 3
