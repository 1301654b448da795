"""PyTorch's allocator behaviours (tests/behaviour), with native and with ours by the same code."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour import worker
from tests.behaviour.document import DOCUMENT, count, page
from tests.behaviour.table import Behaviour, Check, Difference, behaviours
from tests.rig.machine import Machine, Run

ROOT = Path(__file__).resolve().parent.parent
ALLOCATORS = ("native", "bridge", "bridge-late")


def torch_version() -> tuple[int, int]:
    """Of the torch that is installed; a very new one where there is none, and nothing will run."""
    try:
        major, minor = metadata.version("torch").split(".")[:2]
    except metadata.PackageNotFoundError:
        return (99, 0)
    return int(major), int(minor)


def marks(machine: str, row: Behaviour) -> list[pytest.MarkDecorator]:
    """What a behaviour needs of a machine."""
    if machine == "rig":
        return []
    return [pytest.mark.gpu, *([pytest.mark.gpus(row.cards)] if row.cards > 1 else [])]


def cases() -> list[object]:
    """Every behaviour that this torch has, on each machine that can show it."""
    return [
        pytest.param(
            machine,
            allocator,
            row,
            id=f"{machine}-{allocator}-{row.name}",
            marks=marks(machine, row),
        )
        for machine in ("rig", "gpu")
        for allocator in ALLOCATORS
        for row in behaviours().values()
        if row.since <= torch_version() and row.runs_on(machine)
        if allocator != "bridge-late" or row.runs_late(machine)
    ]


def judged_end(row: Behaviour, done: Run) -> str:
    """What is wrong with how a process ended: its code, and anything printed but its traceback."""
    *before, last = done.stderr.splitlines() or [""]
    traced = all(line.startswith(("Traceback ", " ")) for line in before)
    quiet = (
        done.stdout == "" and traced and (last.startswith(row.stderr) if row.stderr else not last)
    )
    if done.returncode == row.exit_code and quiet:
        return ""
    return f"it ended with {done.returncode}, and printed\n{done.stdout}\n{done.stderr}"


class Outcomes:
    """Runs behaviours in batches: those of a group that need no process of their own share one."""

    def __init__(self, folder: Path, wanted: set[tuple[str, str, str]]) -> None:
        self.folder = folder
        self.wanted = wanted
        self.known: dict[tuple[str, str, str], str] = {}

    def of(self, machine: Machine, allocator: str, row: Behaviour) -> str:
        """What is wrong with a behaviour, "" if nothing is."""
        key = (machine.kind, allocator, row.name)
        if key not in self.known:
            batch = [row.name]
            if not row.alone:
                batch = [
                    name
                    for name, other in behaviours().items()
                    if (machine.kind, allocator, name) in self.wanted
                    and not other.alone
                    and other.group == row.group
                    and other.env == row.env
                ]
            self.run(machine, allocator, batch)
        return self.known[key]

    def run(self, machine: Machine, allocator: str, batch: list[str]) -> None:
        """Run a batch; go on in a new process after one that ends its process."""
        while batch:
            report = self.folder / f"{len(self.known)}-{machine.kind}-{allocator}"
            code = (
                f"import sys; sys.path.append({str(ROOT)!r})\n"
                "from tests.behaviour import worker\n"
                f"worker.main({allocator!r}, {batch!r}, {str(report)!r})\n"
            )
            done = machine.run(code, check=False, env=behaviours()[batch[0]].env)
            begun = ""
            row = behaviours()[batch[0]]
            if row.exit_code is not None:
                self.known[machine.kind, allocator, row.name] = judged_end(row, done)
                return
            text = f"the process ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            if not report.exists():  # not even the allocator came into place
                self.known.update({(machine.kind, allocator, name): text for name in batch})
                return
            for line in report.read_text().splitlines():
                entry = json.loads(line)
                begun = entry.get("begun", "")
                if "done" in entry:
                    self.known[machine.kind, allocator, entry["done"]] = entry["wrong"]
            if begun or done.returncode != 0:
                self.known[machine.kind, allocator, begun or batch[-1]] = text
            batch = [name for name in batch if (machine.kind, allocator, name) not in self.known]


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The outcomes of this session's behaviours."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {
        (call.params["kind"], call.params["allocator"], call.params["row"].name)
        for call in calls
        if call is not None and {"kind", "allocator", "row"} <= call.params.keys()
    }
    return Outcomes(tmp_path_factory.mktemp("behaviours"), wanted)


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "allocator", "row"), cases())
def test_behaviour(
    request: pytest.FixtureRequest, outcomes: Outcomes, kind: str, allocator: str, row: Behaviour
) -> None:
    machine: Machine = request.getfixturevalue(kind)
    if allocator != "native":
        request.getfixturevalue("bridge")  # built before anything is run with it
    wrong = outcomes.of(machine, allocator, row)
    if wrong:
        pytest.fail(wrong, pytrace=False)


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text() == page(), "run: python -m tests.behaviour --write"
    assert count() in page()


def holds() -> None:
    """A check that holds."""


def fails() -> None:
    raise AssertionError("of the test")


def breaks() -> None:
    raise KeyError("of the test")


@pytest.mark.parametrize(
    ("check", "instead", "native", "bridge"),
    [
        (holds, None, "", ""),
        (fails, None, "of the test", "of the test"),
        (fails, holds, "of the test", ""),
        (holds, holds, "", "no longer differs"),
        (breaks, holds, "of the test", "to differ, not to fail"),
        (fails, fails, "of the test", "of the test"),
    ],
)
def test_the_judge_sees_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, check: Check, instead: Check | None, native: str, bridge: str
) -> None:
    monkeypatch.setattr(worker, "settle", holds)
    difference = Difference("why", instead) if instead else None
    row = Behaviour(check=check, group="none", difference=difference)
    for allocator, said in (("native", native), ("bridge", bridge)):
        wrong = worker.judged(row, allocator)
        assert (said in wrong) if said else (wrong == "")


@pytest.mark.parametrize(
    ("done", "is_right"),
    [
        (Run(1, "", "Traceback (most recent call last):\n  a line\nKeyError: 'x'\n"), True),
        (Run(0, "", "Traceback (most recent call last):\n  a line\nKeyError: 'x'\n"), False),
        (Run(1, "", "noise\nKeyError: 'x'\n"), False),
        (Run(1, "noise", "KeyError: 'x'\n"), False),
        (Run(1, "", ""), False),
        (Run(1, "", "KeyError: 'x'\nnoise\n"), False),
    ],
)
def test_an_end_is_judged_by_its_code_and_its_words(done: Run, is_right: bool) -> None:
    row = Behaviour(check=holds, group="none", exit_code=1, stderr="KeyError: 'x'")
    assert (judged_end(row, done) == "") is is_right
    quiet = Behaviour(check=holds, group="none", exit_code=0)
    assert judged_end(quiet, Run(0, "", "")) == ""
    assert judged_end(quiet, Run(0, "", "noise")) != ""


def test_a_batch_goes_on_after_one_that_ends_its_process(tmp_path: Path) -> None:
    names = [name for name, row in behaviours().items() if row.group == "generic"][:3]
    ran: list[str] = []

    class Fake:
        kind = "rig"

        def run(self, code: str, check: bool, env: object) -> Run:
            batch, report = re.findall(r"main\('native', (\[.*?\]), '(.*?)'\)", code)[0]
            with Path(report).open("w") as lines:
                for name in names:
                    if name in batch:
                        ran.append(name)
                        lines.write(json.dumps({"begun": name}) + "\n")
                        if name == names[1]:
                            return Run(-11, "", "")
                        lines.write(json.dumps({"done": name, "wrong": ""}) + "\n")
            return Run(0, "", "")

    outcomes = Outcomes(tmp_path, {("rig", "native", name) for name in names})
    fake: Any = Fake()
    said = [outcomes.of(fake, "native", behaviours()[name]) for name in names]
    assert said[0] == said[2] == ""
    assert "ended with -11" in said[1]
    assert ran == names
