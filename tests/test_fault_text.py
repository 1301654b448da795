"""Addresses of faults in what tools print, and none where there are none."""

from __future__ import annotations

import os
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem_alloc.isolation import exit_report
from gpumem_alloc.isolation.fault_text import PAGE_BYTES, FaultAddress, parse

addresses = st.integers(0, (1 << 64) - 1)
counts = st.integers(0, 1 << 50)
accesses = st.sampled_from(["read", "write", "atomic"])
kernels = st.sampled_from(["scale(float *, int)+0x70 in bug.cu:6", "void k<(int)4>(T1 *)+0x10"])
# Lines that are no report of a fault; hex numbers among them are no addresses of one.
junk = st.text(string.ascii_letters + string.digits + " =x0:.#()@_\n", max_size=200)


def sanitizer(found: FaultAddress, spelling: str, near: tuple[int, str, int, int] | None) -> str:
    """What compute-sanitizer prints of one access; `near` is of its nearest allocation."""
    state = "misaligned" if found.is_misaligned else "out of bounds"
    lines = [
        f"Invalid __global__ {found.access} of size {found.access_bytes:,} bytes",
        f"    at {found.kernel}",
        "    by thread (255,0,0) in block (3,0,0)",
        f"    {spelling} {found.address:#x} is {state}",
    ]
    if near is not None:
        lines.append(
            f"    and is {near[0]:,} bytes {near[1]} the nearest allocation at {near[2]:#x} of "
            f"size {near[3]:,} bytes"
        )
    lines += ["    Saved host backtrace up to driver entry point at kernel launch time"]
    lines += ["        Host Frame: main [0x8ae3] in program"]
    return "".join(f"========= {line}\n" for line in lines)


@given(
    st.builds(
        FaultAddress,
        addresses,
        source=st.just("compute-sanitizer"),
        access=accesses,
        access_bytes=st.sampled_from([1, 2, 4, 8, 16]),
        is_misaligned=st.booleans(),
        kernel=kernels,
    ),
    st.sampled_from(["Address", "Access to"]),
    st.none() | st.tuples(counts, st.sampled_from(["after", "before"]), addresses, counts),
    junk,
    junk,
)
def test_an_access_that_compute_sanitizer_found(
    fault: FaultAddress,
    spelling: str,
    near: tuple[int, str, int, int] | None,
    before: str,
    after: str,
) -> None:
    (found,) = parse(f"{before}\n{sanitizer(fault, spelling, near)}\n{after}").addresses
    note = found.note
    assert found == FaultAddress(**{**vars(fault), "note": note})
    if near is None:
        assert note == ""
    else:
        assert f"{near[0]:,} bytes {near[1]} " in note
        assert f"{near[2]:#x} of {near[3]:,} bytes" in note


@given(st.lists(addresses, min_size=1, max_size=8))
def test_each_address_once_and_in_order(given_addresses: list[int]) -> None:
    faults = [
        FaultAddress(address, access="read", access_bytes=4, kernel="k+0x1")
        for address in given_addresses
    ]
    text = "".join(sanitizer(fault, "Address", None) for fault in faults)
    assert [one.address for one in parse(text).addresses] == list(dict.fromkeys(given_addresses))


@given(addresses, st.sampled_from(["shared", "local"]))
def test_offsets_in_other_memory_are_no_addresses(address: int, space: str) -> None:
    fault = FaultAddress(address, access="read", access_bytes=4, kernel="k+0x1")
    text = sanitizer(fault, "Address", None).replace("__global__", f"__{space}__")
    assert parse(text).addresses == []
    assert parse(f"Illegal access to address (@{space}){address:#x} detected.").addresses == []


def test_the_older_form_of_memcheck() -> None:
    (found,) = parse("""
========= Invalid __global__ write of size 4
=========     at 0x00000148 in bug.cu:12:scale(float*)
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7fff87654320 is out of bounds
=========     Saved host backtrace up to driver entry point
""").addresses
    assert (found.address, found.access, found.access_bytes) == (0x7FFF87654320, "write", 4)
    assert found.kernel == "bug.cu:12:scale(float*)"


@given(addresses, st.sampled_from(["global", "generic"]), junk)
def test_an_address_that_cuda_gdb_names(address: int, space: str, before: str) -> None:
    found = parse(f"""{before}
Illegal access to address (@{space}){address:#x} detected.

Thread 1 "python" received signal CUDA_EXCEPTION_1, Lane Illegal Address.
[Switching focus to CUDA kernel 0, grid 1, block (0,0,0), thread (0,0,0), device 0, sm 0, warp 0]
#0  0x0000555555edf970 in scale<<<(1,1,1),(128,1,1)>>> ()
""")
    (one,) = found.addresses
    assert one == FaultAddress(address, source="cuda-gdb", kernel="scale<<<(1,1,1),(128,1,1)>>> ()")
    assert found.kernels == []


@given(addresses)
def test_an_instruction_is_no_address_of_an_access(counter: int) -> None:
    found = parse(f"""
Opening GPU coredump: core_1_host_2.nvcudmp
CUDA Exception: Warp Illegal Address
The exception was triggered at PC {counter:#x} (bug.cu:9)
[Current focus set to CUDA kernel 0, grid 1, block (0,0,0), thread (0,0,0), device 0, sm 0, warp 0]
#0  {counter + 16:#x} in scale(float*) at bug.cu:9
#1  0x00007f31abb9f6e0 in other()
""")
    assert found.addresses == []
    assert found.errors == ["Warp Illegal Address"]
    assert found.kernels == ["scale(float*) at bug.cu:9"]


@given(
    addresses.map(lambda address: address // PAGE_BYTES * PAGE_BYTES),
    st.sampled_from(["READ", "WRITE", "ATOMIC"]),
    st.integers(1, 4_000_000),
    st.sampled_from(["GPCCLIENT_T1_3", "GPC2 GPCCLIENT_PROP_0", "HUBCLIENT_HOST_CPU"]),
    st.booleans(),
)
def test_a_page_that_the_driver_names(
    address: int, access: str, pid: int, unit: str, is_broken: bool
) -> None:
    line = (
        f"[ 1451.785035] NVRM: Xid (PCI:0000:01:00): 31, pid={pid}, name=python, channel "
        f"0x0000005c, intr 00000000. MMU Fault: ENGINE GRAPHICS {unit} faulted @ "
        f"{address >> 32:#x}_{address & 0xFFFFFFFF:08x}. Fault is of type FAULT_PDE "
        f"ACCESS_TYPE_VIRT_{access}\n"
    )
    if is_broken:  # as some journals do
        line = line.replace(" MMU Fault", "\n  MMU Fault").replace(" faulted", "\n  faulted")
    other = (
        "NVRM: Xid (PCI:0000:01:00): 13, pid=7, Graphics SM Warp Exception: Out Of Range Address"
    )
    (found,) = parse(f"{other}\n{line}{other}\n").addresses
    assert found == FaultAddress(
        address, PAGE_BYTES, "kernel log (Xid 31)", access=access.lower(), pid=pid
    )


def test_what_pytorch_prints_has_no_address() -> None:
    found = parse("""
Traceback (most recent call last):
  File "train.py", line 3, in <module>
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
frame #0: c10::Error::Error(...) + 0x80 (0x7f3c04f785e8 in libc10.so)
""")
    assert found.addresses == []
    assert found.errors == ["an illegal memory access was encountered"]


@given(st.text(max_size=300) | junk)
def test_any_other_text_has_none(text: str) -> None:
    assert parse(text).addresses == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might", True),
        ("CUDA error: misaligned address", True),
        ("cuMemsetD8Async failed: CUDA_ERROR_LAUNCH_FAILED", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA out of memory. Tried to allocate 20.00 GiB", False),
        ("CUDA error: out of memory", False),
        ("expected a CUDA tensor", False),
        ("", False),
    ],
)
def test_which_exceptions_tell_of_a_fault(text: str, is_one: bool) -> None:
    assert exit_report.is_cuda_error(text) is is_one


def test_an_exception_that_a_fault_led_to_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, str] = {}
    monkeypatch.setattr(exit_report, "_seen", seen)
    fault = RuntimeError("CUDA error: unspecified launch failure\nand more")
    circle = KeyError("a")
    circle.__context__ = ValueError("b")
    circle.__context__.__context__ = circle
    for harmless in (circle, None):
        exit_report.note(harmless)
        assert seen == {}
    last = KeyError("c")
    last.__context__ = ValueError("d")
    last.__context__.__cause__ = fault
    exit_report.note(last)
    assert seen == {os.getpid(): "CUDA error: unspecified launch failure"}


# An H200, driver 580.159.04: the same overrun under compute-sanitizer, and without it as the
# kernel's log shows it.
_RECORDED = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at count_up+0xe0
=========     by thread (0,0,0) in block (16,0,0)
=========     Access to 0x10004400000 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x10004200000 of size 2,097,152 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
[  355.943617] NVRM: Xid (PCI:0000:00:06): 43, pid=7157, name=python3, channel 0x0000000a
[  366.903016] NVRM: Xid (PCI:0000:00:06): 31, pid=7264, name=python3, channel 0x0000000a, intr \
00000000. MMU Fault: ENGINE GRAPHICS GPC7 GPCCLIENT_T1_0 faulted @ 0x100_04400000. Fault is of \
type FAULT_PDE ACCESS_TYPE_VIRT_WRITE
"""


def test_what_a_card_and_its_tools_have_printed() -> None:
    of_tool, of_kernel_log = parse(_RECORDED).addresses
    assert of_tool.address == of_kernel_log.address == 0x10004400000
    assert (of_tool.access, of_tool.access_bytes, of_tool.kernel) == ("write", 4, "count_up+0xe0")
    assert (of_kernel_log.access, of_kernel_log.pid) == ("write", 7264)
    assert of_kernel_log.span_bytes == PAGE_BYTES
