"""Options in Python: one table, one precedence, errors that help."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpumem_alloc
from gpumem_alloc import _C, OptionError, Options
from gpumem_alloc.options import ENVIRONMENT, resolve, split
from gpumem_alloc.sizes import device_index, to_bytes


def resolved(**arguments: object) -> Options:
    return Options(**_C.parse_options(resolve(arguments)))


def test_the_dataclass_is_the_table() -> None:
    defaults = _C.parse_options("")
    fields = dataclasses.asdict(Options())
    assert fields == defaults
    assert [type(value) for value in fields.values()] == [type(v) for v in defaults.values()]
    assert [row["name"] for row in _C.option_table()] == list(fields)


def test_call_wins_over_environment_and_environment_over_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "strategy:split,max_chunk_mb:64")
    assert resolved(strategy="direct").strategy == "direct"
    assert resolved(strategy="direct").max_chunk_mb == 64
    assert resolved().strategy == "split"
    assert resolved().slack_percent == Options().slack_percent


def test_a_preset_only_changes_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "slack_percent:7")
    assert resolved(preset="lean").slack_percent == 7.0
    monkeypatch.delenv(ENVIRONMENT)
    assert resolved(preset="lean").slack_percent < Options().slack_percent
    assert resolved(slack_percent=9, preset="lean").slack_percent == 9.0


@pytest.mark.parametrize("preset", ["lean", "fast"])
def test_the_table_says_what_a_preset_sets(preset: str) -> None:
    plain, chosen = _C.parse_options(""), _C.parse_options(f"preset:{preset}")
    changed = {key: value for key, value in chosen.items() if value != plain[key]}
    del changed["preset"]
    said = ", ".join(f"{key} {value:g}" for key, value in changed.items())
    (sentence,) = (row["sentence"] for row in _C.option_table() if row["name"] == "preset")
    assert f"({said})" in sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"slack_percnt": 3}, ["slack_percnt", "slack_percent"]),
        ({"strategy": "pagd"}, ["strategy", "pagd", "paged"]),
        ({"max_chunk_mb": 0}, ["max_chunk_mb"]),
        ({"max_chunk_mb": "many"}, ["max_chunk_mb", "many"]),
        ({"max_chunk_mb": True}, ["max_chunk_mb", "bool"]),
        ({"preset": "lean,strategy:split"}, ["preset", "comma"]),
    ],
)
def test_bad_options_are_named_with_the_nearest_valid_one(
    arguments: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(OptionError) as caught:
        resolve(arguments)
    for word in words:
        assert word in str(caught.value)


def test_a_bad_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "strategy")
    with pytest.raises(OptionError, match="strategy"):
        resolve({})


def test_options_print_in_the_form_that_the_environment_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = str(resolved(strategy="split", roundup_power2_divisions="[256:1,512:2,>:8]"))
    monkeypatch.setenv(ENVIRONMENT, text)
    assert resolved().roundup_power2_divisions == "[256:1,512:2,>:8]"
    assert str(resolved()) == text


def test_brackets_keep_their_commas() -> None:
    assert split("a:1,b:[256:1,>:8],c:2") == {"a": "1", "b": "[256:1,>:8]", "c": "2"}
    assert split("") == split(" , ") == {}


@pytest.mark.parametrize(
    ("text", "size"), [(0, 0), (17, 17), ("17", 17), ("1.5 GiB", 3 << 29), ("30gib", 30 << 30)]
)
def test_amounts_of_memory(text: int | str, size: int) -> None:
    assert to_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", -1, "1 GB/s", True])
def test_no_amounts_of_memory(text: int | str) -> None:
    with pytest.raises(ValueError, match="amount of memory"):
        to_bytes(text)


@pytest.mark.parametrize(
    ("call", "right"),
    [
        (gpumem_alloc.trim, "trim(device='cuda:5')"),
        (gpumem_alloc.reserve, "reserve(\"1GiB\", device='cuda:5')"),
        (gpumem_alloc.set_limit, "set_limit(\"30GiB\", device='cuda:5')"),
    ],
)
@pytest.mark.parametrize("device", ["cuda:5", SimpleNamespace(type="cuda", index=5)])
def test_a_device_in_place_of_an_amount_names_the_right_call(
    call: Any, right: str, device: object
) -> None:
    with pytest.raises(ValueError, match="is a device, and no amount") as refused:
        call(device)
    what, _, action = str(refused.value).split("\n")
    assert what.startswith("'cuda:5' is")
    assert right in action


def test_what_is_no_device_is_no_amount_either() -> None:
    for wrong in ("cuda:x", "cudas", SimpleNamespace(type="cpu", index=None)):
        with pytest.raises(ValueError, match="is no amount of memory"):
            gpumem_alloc.trim(wrong)  # type: ignore[arg-type]


def test_devices() -> None:
    assert device_index(3) == device_index("cuda:3") == 3
    assert device_index("cuda") == device_index() == 0
    with pytest.raises(ValueError, match="cpu"):
        device_index("cpu")


@pytest.mark.parametrize("preset", ["balanced", "lean", "fast"])
def test_a_presets_options_survive_as_text(preset: str) -> None:
    made = Options(preset=preset)
    assert vars(made) == _C.parse_options(f"preset:{preset}")
    assert _C.parse_options(str(made)) == vars(made)
    changed = Options(preset=preset, slack_percent=2.5)
    assert _C.parse_options(str(changed))["slack_percent"] == 2.5


def test_a_preset_that_does_not_exist() -> None:
    with pytest.raises(OptionError, match="balanced"):
        Options(preset="thrifty")


def test_the_options_in_force_can_be_asked() -> None:
    assert gpumem_alloc.options() == Options()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it fails
import gpumem_alloc
assert not gpumem_alloc.is_enabled()
assert gpumem_alloc.stats()["allocated_bytes.all.current"] == 0
assert gpumem_alloc.trim() == 0
assert gpumem_alloc.errors() == []
try:
    gpumem_alloc.enable()
except gpumem_alloc.AllocatorError as error:
    assert "torch" in str(error)
else:
    raise AssertionError("enabled without torch")
"""


def test_a_machine_with_nothing_imports_it_and_is_told(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(gpumem_alloc.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH], capture_output=True, text=True,
        check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
