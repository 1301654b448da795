"""Building and keeping the bridge, with a compiler that takes no time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpumem_alloc import _C
from gpumem_alloc.bridge import build, cache, load, obtain, sources, stamps, status
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.facts import TorchFacts
from gpumem_alloc.cli import bridge as bridge_command
from tests.bridge_bench import PACKAGE_FOLDER, UNITS, Bench, set_up


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return set_up(tmp_path, monkeypatch)


# --- what a bridge is named by --------------------------------------------------------------------


def name_of(facts: TorchFacts, version: str = "0.1.0") -> str:
    return cache.name(build.recipe(facts, obtain.PACKAGE, version), version)


def test_the_name_covers_torch_python_abi_and_our_version(bench: Bench) -> None:
    names = {
        name_of(bench.facts),
        name_of(replace(bench.facts, version="2.14.1+cu126")),
        name_of(replace(bench.facts, version="2.13.0+cu130")),
        name_of(replace(bench.facts, cxx11_abi=False)),
        name_of(bench.facts, "0.2.0"),
    }
    assert len(names) == 5
    assert all(sys.implementation.cache_tag[:7] in name for name in names)


def test_the_name_covers_sources_and_what_they_include(bench: Bench) -> None:
    csrc = obtain.PACKAGE / "csrc"
    before = name_of(bench.facts)
    (csrc / "base/unrelated.h").write_text("// other\n")
    assert name_of(bench.facts) == before
    (csrc / "base/shared.h").write_text("// other\n")
    changed = name_of(bench.facts)
    assert changed != before
    (csrc / "torch/bridge/three.cpp").write_text("")
    assert name_of(bench.facts) not in (before, changed)


def test_the_name_covers_the_flags(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = name_of(bench.facts)
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-O0"))
    assert name_of(bench.facts) != before


def test_the_sources_are_those_beside_the_package_or_inside_it(tmp_path: Path) -> None:
    package = tmp_path / "gpumem_alloc"
    assert sources.folder(package) == tmp_path / "csrc"
    (package / "csrc").mkdir(parents=True)
    assert sources.folder(package) == package / "csrc"


def test_a_package_without_sources_says_so(bench: Bench) -> None:
    for path in (obtain.PACKAGE / "csrc/torch/bridge").glob("*.cpp"):
        path.unlink()
    with pytest.raises(BridgeError, match="came without them") as caught:
        obtain.obtain(bench.facts)
    assert len(str(caught.value).splitlines()) == 3


# --- once, and found again ------------------------------------------------------------------------


def test_it_is_built_once_and_then_found_without_a_compiler(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = obtain.obtain(bench.facts)
    assert bench.calls() == UNITS
    line = "gpumem_alloc: building the bridge for torch 2.14.1+cu130 (under a minute, once)\n"
    assert capfd.readouterr().err == line
    assert first.module.is_relative_to(bench.cache)
    assert stamps.read(first.module) == stamps.Stamp("2.14.1+cu130", first.made.source_id)

    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert obtain.obtain(bench.facts) == first
    assert bench.calls() == []
    assert capfd.readouterr().err == ""


def test_it_is_found_where_the_package_was_installed_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = obtain.recipe(bench.facts)
    folder = obtain.PACKAGE / "bridge" / "built"
    folder.mkdir(parents=True)
    built = obtain.build_in(folder, made, is_checked=False, tell=lambda _: None)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert obtain.obtain(bench.facts) == built


def test_an_installed_one_of_another_torch_is_named_and_left(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = obtain.PACKAGE / "bridge" / "built"
    folder.mkdir(parents=True)
    other = obtain.recipe(replace(bench.facts, version="2.13.0+cu130"))
    obtain.build_in(folder, other, is_checked=False, tell=lambda _: None)
    bench.calls()
    assert obtain.obtain(bench.facts).module.is_relative_to(bench.cache)
    assert bench.calls() == UNITS
    first, _ = capfd.readouterr().err.splitlines()
    assert first.endswith("is for torch 2.13.0+cu130, and this is torch 2.14.1+cu130")


PREBUILD = """
from pathlib import Path
from gpumem_alloc.bridge import obtain, prebuild
obtain.PACKAGE = Path({package!r})
raise SystemExit(prebuild.main())
"""


@pytest.mark.torch
def test_an_install_builds_it_into_the_package_or_says_in_one_line_why_not(bench: Bench) -> None:
    def prebuild(**environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PREBUILD.format(package=str(obtain.PACKAGE))]
        return subprocess.run(
            command, env={**os.environ, **environment}, cwd=PACKAGE_FOLDER, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    built = obtain.PACKAGE / "bridge" / "built"
    built.parent.mkdir()
    failed = prebuild(FAKE_FAIL="one.cpp")
    assert failed.returncode == 1
    *_, line = failed.stderr.splitlines()
    assert "the bridge was not built now" in line
    assert "no such luck" in line
    assert not built.exists()

    done = prebuild()
    assert done.returncode == 0, done.stderr
    (entry,) = built.iterdir()
    assert {path.name for path in entry.iterdir()} == {build.module_name(), "bridge.json"}


def test_force_builds_again(bench: Bench) -> None:
    obtain.obtain(bench.facts)
    bench.calls()
    obtain.obtain(bench.facts, force=True)
    assert bench.calls() == UNITS


def test_racing_processes_build_it_once(bench: Bench) -> None:
    processes = [bench.start(FAKE_SECONDS="0.3") for _ in range(6)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, outputs
    assert len({out for out, _ in outputs}) == 1
    assert sum(err.count("building the bridge") for _, err in outputs) == 1
    assert bench.calls() == UNITS


def test_racing_processes_fail_once(bench: Bench) -> None:
    processes = [bench.start(FAKE_SECONDS="0.3", FAKE_FAIL="two.cpp") for _ in range(4)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [1] * 4
    assert all("error: no such luck" in err for _, err in outputs)
    assert bench.calls().count("two.cpp") == 1


def test_a_builder_that_dies_leaves_nothing_in_the_way(bench: Bench) -> None:
    dying = bench.start(FAKE_SECONDS="60")
    while not (bench.folder / "calls").exists():
        assert dying.poll() is None, dying.communicate()
        time.sleep(0.02)
    os.killpg(dying.pid, signal.SIGKILL)  # and its compilers
    dying.communicate()
    bench.calls()
    module = obtain.obtain(bench.facts).module
    assert bench.calls() == UNITS
    assert not list(module.parent.glob("scratch-*"))


# --- what is not used -----------------------------------------------------------------------------


def truncate(module: Path) -> None:
    module.write_bytes(module.read_bytes()[:-1])


def empty(module: Path) -> None:
    module.write_bytes(b"")


def alter(module: Path) -> None:
    data = bytearray(module.read_bytes())
    data[0] ^= 1
    module.write_bytes(data)


def lose_note(module: Path) -> None:
    (module.parent / "bridge.json").unlink()


def spoil_note(module: Path) -> None:
    (module.parent / "bridge.json").write_text("[]")


@pytest.mark.parametrize("damage", [truncate, empty, alter, lose_note, spoil_note])
def test_a_damaged_one_is_built_anew(
    bench: Bench, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    module = obtain.obtain(bench.facts).module
    good = module.read_bytes()
    bench.calls()
    capfd.readouterr()
    damage(module)
    assert obtain.obtain(bench.facts).module == module
    assert bench.calls() == UNITS
    assert module.read_bytes() == good
    assert ("damaged; it is built anew" in capfd.readouterr().err) == (damage is not lose_note)


def test_one_of_another_torch_is_never_loaded(bench: Bench) -> None:
    wanted = obtain.obtain(bench.facts)
    other = obtain.obtain(replace(bench.facts, version="2.13.0+cu130"))
    wanted.module.write_bytes(other.module.read_bytes())
    made, faults = obtain.present(wanted.made)
    assert made is None
    assert "built for torch 2.13.0+cu130, and this is torch 2.14.1+cu130" in faults[0]
    # The file is no ELF: had it been opened, the error would be another.
    with pytest.raises(BridgeError) as caught:
        load.load(wanted)
    first = str(caught.value).splitlines()[0]
    assert "2.13.0+cu130" in first
    assert "2.14.1+cu130" in first
    bench.calls()
    obtain.obtain(bench.facts)
    assert bench.calls() == UNITS


def test_what_does_not_load_is_a_bridge_error(bench: Bench) -> None:
    with pytest.raises(BridgeError, match=r"cannot be loaded(.|\n)*--force"):
        load.load(obtain.obtain(bench.facts))


def test_a_folder_that_others_may_write_is_refused(bench: Bench) -> None:
    folder = obtain.obtain(bench.facts).module.parent
    for path in (folder, folder.parent):
        path.chmod(0o777)
        with pytest.raises(BridgeError) as caught:
            obtain.obtain(bench.facts)
        assert "is writable by others" in caught.value.what
        assert f"chmod go-w {path} " in caught.value.fix
        path.chmod(0o700)
    bench.calls()
    obtain.obtain(bench.facts)
    assert bench.calls() == []


def test_a_file_that_others_may_write_is_built_anew(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    module = obtain.obtain(bench.facts).module
    bench.calls()
    module.chmod(0o666)
    obtain.obtain(bench.facts)
    assert bench.calls() == UNITS
    assert "not to be trusted" in capfd.readouterr().err
    assert module.stat().st_mode & 0o022 == 0


def test_another_users_folder_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = obtain.obtain(bench.facts).module.parent.parent
    if os.getuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(BridgeError, match="belongs to another user"):
        obtain.obtain(bench.facts)


def test_a_linked_folder_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    bench.cache.mkdir()
    (bench.cache / "bridge").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BridgeError, match="is a link"):
        obtain.obtain(bench.facts)


# --- where it is kept -----------------------------------------------------------------------------


def test_the_folder_is_the_first_that_can_be_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = bench.folder / "file"
    blocked.write_text("")
    assert cache.writable_folder() == bench.cache / "bridge"
    monkeypatch.delenv("GPUMEM_ALLOC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(bench.folder / "xdg"))
    assert cache.writable_folder() == bench.folder / "xdg/gpumem_alloc/bridge"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(bench.folder / "home"))
    assert cache.writable_folder() == bench.folder / "home/.cache/gpumem_alloc/bridge"
    monkeypatch.setenv("HOME", str(blocked))
    monkeypatch.setattr("tempfile.tempdir", str(bench.folder))
    last = cache.writable_folder()
    assert last == bench.folder / f"gpumem_alloc-{os.getuid()}"
    assert last.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("tempfile.tempdir", str(blocked))
    with pytest.raises(BridgeError, match="GPUMEM_ALLOC_CACHE"):
        cache.writable_folder()


# --- builds that fail -----------------------------------------------------------------------------


def test_a_failed_build_names_the_log_and_is_not_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "one.cpp")
    texts = set()
    for _ in range(2):
        with pytest.raises(BridgeError) as caught:
            obtain.obtain(bench.facts)
        texts.add(str(caught.value))
    assert bench.calls().count("one.cpp") == 1
    (text,) = texts
    what, why, fix = text.splitlines()
    assert "compiling one.cpp failed" in what
    assert "error: no such luck" in why
    (log,) = bench.cache.glob("bridge/*/build.log")
    assert str(log) in fix
    assert "no such luck" in log.read_text()
    assert not list(log.parent.glob("scratch-*")), "the scratch folder stays behind"

    monkeypatch.delenv("FAKE_FAIL")
    with pytest.raises(BridgeError):
        obtain.obtain(bench.facts)
    assert obtain.obtain(bench.facts, retry=True).module.is_file()
    assert not (log.parent / "failed.json").exists()


def test_a_lack_of_memory_may_pass(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAIL", "one.cpp")
    monkeypatch.setenv("FAKE_SAYS", "fatal error: Killed signal terminated program cc1plus")
    with pytest.raises(BridgeError, match="Killed"):
        obtain.obtain(bench.facts)
    monkeypatch.delenv("FAKE_FAIL")
    assert obtain.obtain(bench.facts).module.is_file()


def test_a_cache_that_cannot_be_written_is_a_bridge_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.Entry, "publish", full)
    with pytest.raises(BridgeError, match=r"No space left on device(.|\n)*GPUMEM_ALLOC_CACHE"):
        obtain.obtain(bench.facts)


def test_status_knows_of_a_failed_build(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status.collect(bench.facts)["then"].startswith("compile the bridge")
    monkeypatch.setenv("FAKE_FAIL", "one.cpp")
    with pytest.raises(BridgeError):
        obtain.obtain(bench.facts)
    report = status.collect(bench.facts)
    assert report["door"] == "stock"
    assert "no such luck" in report["problems"][0]
    assert "bridge build" in report["fixes"][0]


def test_status_without_torch_or_with_an_old_one(bench: Bench) -> None:
    assert status.collect(None)["then"] == "need torch, which is not installed"
    report = status.collect(replace(bench.facts, version="2.10.0+cu130"))
    assert report["door"] == "stock"
    assert "too old" in report["problems"][0]


def test_status_names_as_missing_only_what_was_looked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(found: TorchFacts | None) -> str:
        monkeypatch.setattr(status, "installed_torch", lambda: found)
        bridge_command.show_status()
        return capsys.readouterr().out

    kernels = "built in" if _C.has_cuda_kernels() else "built without nvcc"
    assert kernels in printed(None)
    assert "not found" not in printed(None)
    assert "not installed" in printed(None)
    old = printed(replace(bench.facts, version="2.10.0+cu130"))
    assert "not found" not in old
    assert "too old" in old
    assert "compiler" in printed(bench.facts)


def test_another_compiler_is_another_chance(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAIL", "one.cpp")
    with pytest.raises(BridgeError):
        obtain.obtain(bench.facts)
    monkeypatch.delenv("FAKE_FAIL")
    monkeypatch.setenv("FAKE_MACROS", "#define __GNUC__ 13\n#define __GNUC_MINOR__ 1")
    assert obtain.obtain(bench.facts).module.is_file()


def test_the_compiler_sees_torch_cuda_and_python_and_links_by_versioned_names(
    bench: Bench,
) -> None:
    log = obtain.obtain(bench.facts).log.read_text()
    compiled, linked = log.splitlines()[0], log.splitlines()[-1]
    assert " -shared " in linked
    root = bench.facts.root
    for part in (f"-isystem{root}/include ", f"-isystem{bench.folder}/cuda/include ", "-std=c++20",
                 f"-iquote{obtain.PACKAGE}/csrc", "-fvisibility=hidden", "/python3"):  # fmt: skip
        assert part in compiled
    for part in (f"-L{root}/lib ", "-lc10_cuda", "libcudart.so.13", "-Wl,--as-needed"):
        assert part in linked
    assert "rpath," not in linked


def test_a_compiler_without_the_shared_runtime_gets_the_one_in_use(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "7f00-7f01 r-xp 0 08:01 42                     /env/lib/libstdc++.so.6.0.34\n"
    monkeypatch.setattr(build, "_maps", lambda: "7f00 [heap]\n" + line + "7f02 /lib/libc.so.6\n")
    assert " /env/lib/libstdc++.so.6.0.34 " in obtain.obtain(bench.facts).log.read_text()
    monkeypatch.setattr(build, "_maps", lambda: "")
    obtain.obtain(bench.facts, force=True)
