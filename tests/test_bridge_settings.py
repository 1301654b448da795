"""PyTorch's own settings under the bridge: what is not honoured is said, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.machine import Machine

pytestmark = pytest.mark.torch

SAID = """
    import warnings, torch, gpumem_alloc
    gpumem_alloc.enable({options})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = torch.ones(1000).cuda()
        y = torch.ones(1000).cuda()
    assert x.cpu().sum() == 1000
    print(*[str(warning.message).split(" (Trig")[0] for warning in caught], sep="\\n")
"""


def said(machine: Machine, variable: str, settings: str, options: str = "") -> str:
    """What is printed about settings when the card is first used."""
    return machine.run(SAID.format(options=options), env={variable: settings}).stdout.strip()


def test_settings_that_change_nothing_are_named(bridged: Machine) -> None:
    text = said(
        bridged, "PYTORCH_CUDA_ALLOC_CONF",
        "max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,>:8],"
        "per_process_memory_fraction:0.9,expandable_segments:True",
    )  # fmt: skip
    assert text.startswith(
        "gpumem_alloc: of PYTORCH_CUDA_ALLOC_CONF, max_split_size_mb, roundup_power2_divisions"
        " change nothing"
    )
    assert "GPUMEM_ALLOC_CONF" in text
    assert "\n" not in text


def test_one_setting_by_the_newer_name(bridged: Machine) -> None:
    text = said(bridged, "PYTORCH_ALLOC_CONF", "garbage_collection_threshold:0.8")
    assert "of PYTORCH_ALLOC_CONF, garbage_collection_threshold changes nothing" in text


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "expandable_segments:True",
        "per_process_memory_fraction:0.5",
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:4",
        "backend:native",
    ],
)
def test_what_holds_anyway_is_not_worth_a_word(bridged: Machine, settings: str) -> None:
    assert said(bridged, "PYTORCH_CUDA_ALLOC_CONF", settings) == ""


def test_segments_that_cannot_expand_are_named_under_split(bridged: Machine) -> None:
    text = said(
        bridged, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 'strategy="split"'
    )  # fmt: skip
    assert "expandable_segments changes nothing" in text


def test_settings_at_run_time_are_parsed_and_what_changes_nothing_is_named(
    bridged: Machine,
) -> None:
    bridged.run("""
        import warnings, torch, gpumem_alloc
        gpumem_alloc.enable()
        torch.ones(1000).cuda()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.8")
            torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        [warning] = caught
        assert "garbage_collection_threshold changes nothing" in str(warning.message)
        assert warning.filename == "<string>" or warning.filename.endswith("code"), warning.filename
        try:
            torch._C._accelerator_setAllocatorSettings("no_such_key:1")
        except ValueError as error:
            assert "no_such_key" in str(error)
        else:
            raise AssertionError("an unknown key passed")
    """)


def test_snapshots_need_nothing_of_the_backend_that_was_asked_for(bridged: Machine) -> None:
    bridged.run_fresh(
        """
        import warnings, torch, gpumem_alloc
        warnings.filterwarnings("ignore", ".*backend changes nothing")
        gpumem_alloc.enable()
        torch.cuda.memory._record_memory_history(stacks="python")
        x = torch.empty(1 << 20, device="cuda")
        [segment] = torch.cuda.memory_snapshot()
        assert segment["allocated_size"] == 4 << 20
        [trace, *_] = torch.cuda.memory._snapshot()["device_traces"]
        assert ("alloc", 4 << 20) in [(entry["action"], entry["size"]) for entry in trace]
        """,
        env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    )


def test_the_fraction_is_told_of_the_limit_in_force(pair: Machine, bridge: Path) -> None:
    assert bridge.is_file()
    pair.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable(limit_mb=4096)
        read, write = (torch.cuda.get_per_process_memory_fraction,
                       torch.cuda.set_per_process_memory_fraction)
        expected = (4 << 30) / torch.cuda.mem_get_info(0)[1]
        assert abs(read(0) - expected) < 0.001
        write(0.3, 1)
        assert abs(read(0) - expected) < 0.001 and read(1) == 0.3
        write(0.1, 0)
        assert read(0) == 0.1
        gpumem_alloc.set_limit(0.5, 0)
        assert abs(read(0) - 0.5) < 0.001
        gpumem_alloc.set_limit(None, 0)
        assert read(0) == 1.0 and read(1) == 0.3
    """)
