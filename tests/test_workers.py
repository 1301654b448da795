"""CPU tensors between processes by value: nothing is shared, everything arrives, all is put back.

What needs processes runs in tests/worker_program.py, once for each start method.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import pickle
import subprocess
import sys
import threading
from multiprocessing import connection, process, queues
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem_alloc import workers
from gpumem_alloc.errors import AllocatorError
from gpumem_alloc.workers import by_value
from gpumem_alloc.workers.patches import Patches
from tests.rig.machine import Machine

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("fork", "spawn", "forkserver")

# What torch warns of in its own code, or of the tensors made here.
WARNINGS = (
    "Sparse", "The PyTorch API of nested tensors", "torch.quantize_per_tensor", "TypedStorage is",
    "ComplexHalf",
)  # fmt: skip
pytestmark = [
    pytest.mark.torch,
    *(pytest.mark.filterwarnings(f"ignore:{text}:UserWarning") for text in WARNINGS),
]


def run(what: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.worker_program", what]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def holds_nothing(epoch: dict[str, Any]) -> bool:
    """The check: no mapping, descriptor or file here or in a worker is left, or was ever seen."""
    names = ("mappings", "descriptors", "worker_mappings", "worker_descriptors", "files")
    return not epoch["is_shared"] and not any(epoch[name] for name in names)


def sent(value: Any) -> Any:
    """What arrives, without a process between."""
    return pickle.loads(ForkingPickler.dumps(value))


def sent_by_value(value: Any) -> Any:
    with workers.no_sharing():
        return sent(value)


# ---- processes


def check_other_loaders(found: dict[str, Any]) -> None:
    """Persistent workers, the strategy with names of files, and workers that are killed."""
    for name in ("persistent", "persistent_after"):  # they outlive the mode, and stay in it
        assert found[name]["mappings"] == found[name]["worker_mappings"] == 0
        assert not found[name]["is_shared"]
        assert found[name]["values"] == found["file_system_shared"]["values"]
    assert found["file_system"]["files"] == []
    assert found["file_system"]["worker_mappings"] == 0
    assert found["file_system_shared"]["files"] != []
    assert "exited unexpectedly" in found["iterated"]
    assert found["pin_loop_ends"]
    assert not found["pin_loop_ends_unwatched"]  # so that the line above can fail


@pytest.mark.parametrize("method", METHODS)
def test_processes_share_nothing_whatever_starts_them(method: str) -> None:
    found = run(method)
    by_value, shared = found["by_value"], found["shared"]
    assert holds_nothing(by_value), by_value
    assert by_value["values"] == shared["values"]
    for name in ("mappings", "descriptors", "worker_mappings", "worker_descriptors"):
        assert shared[name] > 0, name  # without the mode the same check fails
    exchanges = found["exchanges"]
    ways = {"Queue", "SimpleQueue", "Pipe"}
    if method != "spawn":
        ways |= {"Pool", "Executor"}
        assert exchanges.pop("grandchild") == {"in_mode": True}
    assert set(exchanges) == ways
    for way, what in exchanges.items():
        assert what == {"equal": True, "moved": False, "in_mode": True, "mappings": 0}, way
    if method == "fork":
        check_other_loaders(found["others"])


# ---- what arrives


def dtypes() -> list[Any]:
    import torch

    return [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
        torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8,
        torch.int16, torch.uint16, torch.int32, torch.int64,
    ]  # fmt: skip


@st.composite
def strided(draw: st.DrawFn) -> Any:
    """A tensor of any type at any place of a storage, with any strides: 0, gaps, overlaps."""
    import torch

    dtype = dtypes()[draw(st.integers(0, len(dtypes()) - 1))]
    pairs = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=4))
    offset, behind = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    sizes, strides = [size for size, _ in pairs], [stride for _, stride in pairs]
    reach = 1 + sum(max(size - 1, 0) * stride for size, stride in pairs)
    count = (offset + reach + behind) * dtype.itemsize
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    top = 2 if dtype is torch.bool else 256
    data = torch.randint(0, top, (count,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).as_strided(sizes, strides, offset)


def raw(tensor: Any) -> list[int]:
    """The elements' bytes, so that a NaN is like itself."""
    import torch

    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.untyped_storage().tolist()  # type: ignore[no-any-return]


def elements(tensor: Any) -> set[int]:
    """The places of a storage that a tensor uses, counted without the code under test."""
    places = {0} if tensor.numel() else set()
    for size, stride in zip(tensor.size(), tensor.stride(), strict=True):
        places = {place + index * stride for place in places for index in range(size)}
    return places


@given(strided())
def test_every_type_and_stride_arrives_and_nothing_beside_it(tensor: Any) -> None:
    address = tensor.data_ptr()
    came = sent_by_value(tensor)
    assert (came.dtype, came.size()) == (tensor.dtype, tensor.size())
    assert raw(came) == raw(tensor)
    own_bytes = len(elements(tensor)) * tensor.element_size()
    assert came.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size()
    if max(elements(tensor), default=-1) == len(elements(tensor)) - 1:
        assert came.stride() == tensor.stride()  # no gaps: kept as it is
        assert came.untyped_storage().nbytes() == own_bytes
    assert not tensor.is_shared()
    assert tensor.data_ptr() == address


def test_every_kind_of_tensor_arrives() -> None:
    import torch

    from tests.worker_program import Kind

    dense = torch.arange(12.0).view(3, 4)
    kinds = {
        "coo": dense.to_sparse(),
        "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((1, 2)),
        "quantized": torch.quantize_per_tensor(dense, 0.1, 2, torch.quint8),
        "per channel": torch.quantize_per_channel(
            dense, torch.ones(3), torch.zeros(3, dtype=torch.long), 0, torch.qint8
        ),
        "jagged": torch.nested.nested_tensor([dense[0], dense[1, :2]], layout=torch.jagged),
        "subclass": dense.as_subclass(Kind),
        "parameter": torch.nn.Parameter(dense.clone()),
        "frozen": torch.nn.Parameter(torch.arange(3), requires_grad=False),
        "leaf": dense.clone().requires_grad_(),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
        "transposed": dense.t(),
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.0),
    }  # fmt: skip
    with workers.no_sharing():
        arrived = {name: sent(tensor) for name, tensor in kinds.items()}
    for name, tensor in kinds.items():
        came = arrived[name]
        assert (type(came), came.dtype, came.layout) == (type(tensor), tensor.dtype, tensor.layout)
        assert came.requires_grad == tensor.requires_grad, name
        if name == "jagged":
            assert [row.tolist() for row in came] == [row.tolist() for row in tensor]
        elif tensor.is_quantized:
            assert torch.equal(came.dequantize(), tensor.dequantize()), name
        elif tensor.layout is torch.strided:
            assert torch.equal(came, tensor), name
            assert came.stride() == tensor.stride(), name
        else:
            assert torch.equal(came.to_dense(), dense), name
        if tensor.layout is torch.strided and name != "jagged":
            assert not came.is_shared(), name


def test_meta_tensors_storages_and_nested_ones_arrive() -> None:
    import torch

    meta = sent_by_value(torch.empty(2, 3, device="meta"))
    assert (meta.device.type, meta.size()) == ("meta", (2, 3))
    storage = sent_by_value(torch.arange(5).untyped_storage())
    assert storage.tolist() == torch.arange(5).untyped_storage().tolist()
    typed = sent_by_value(torch.arange(5)._typed_storage())
    assert typed._untyped_storage.tolist() == storage.tolist()
    assert typed.dtype == torch.int64


def test_tensors_over_one_storage_stay_together_in_a_message() -> None:
    import torch

    data = torch.arange(10.0)
    whole, matrix, part, same_part, storage = sent_by_value(
        [data, data.view(2, 5).t(), data[3:5], data[3:5], data.untyped_storage()]
    )
    whole[1] = 7
    assert matrix[1, 0] == 7
    assert storage.data_ptr() == whole.data_ptr()
    part[0] = 9
    assert same_part[0] == 9
    assert whole[3] == 3  # a part has bytes of its own


def test_a_view_sends_only_its_own_bytes() -> None:
    import torch

    huge = torch.zeros(1000, 1000)
    with workers.no_sharing():
        for view in (huge[5, :10], huge[:10, 5], huge[5:6, 5:6].expand(1000, 1000)):
            assert len(ForkingPickler.dumps(view)) < 1000


def test_what_torch_refuses_is_refused() -> None:
    import torch

    result = torch.ones(2, requires_grad=True) * 2
    with workers.no_sharing():
        with pytest.raises(RuntimeError, match="non-leaf"):
            sent(result)
        with pytest.raises(AllocatorError) as refused:
            torch.ones(2).share_memory_()
    assert len(str(refused.value).splitlines()) == 3


def test_what_was_shared_before_is_copied_too() -> None:
    import torch

    shared = torch.ones(3).share_memory_()
    with workers.no_sharing():
        assert shared.share_memory_() is shared
        came = sent(shared)
    came[0] = 5
    assert not came.is_shared()
    assert shared.tolist() == [1, 1, 1]


def test_older_protocols_of_pickle_carry_it_too() -> None:
    import torch

    with workers.no_sharing():
        for protocol in (2, 4, 5):
            came = pickle.loads(ForkingPickler.dumps(torch.arange(9), protocol))
            assert came.tolist() == list(range(9))
            assert came.add_(1)[0] == 1  # writable


def test_a_cuda_tensor_under_isolation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    options = {"isolation": "packed", "strategy": "paged"}
    fake = SimpleNamespace(is_made=lambda: True, options_in_force=lambda: options)
    monkeypatch.setattr(by_value, "_C", fake)
    with pytest.raises(AllocatorError, match="isolation:packed") as refused:
        by_value.reduce_tensor(tensor, lambda tensor: "sent")
    assert len(str(refused.value).splitlines()) == 3
    options.update(isolation="off", strategy="isolated")
    with pytest.raises(AllocatorError, match="isolation:tensor"):
        by_value.reduce_tensor(tensor, lambda tensor: "sent")


# ---- the mode


def replaced() -> list[Any]:
    import torch
    from torch.multiprocessing import reductions
    from torch.utils.data import _utils, dataloader

    table = dict(ForkingPickler._extra_reducers)  # type: ignore[attr-defined]
    owners = (
        ForkingPickler, process.BaseProcess, queues.Queue, queues.JoinableQueue,
        connection.Connection, torch.UntypedStorage, reductions, _utils.pin_memory,
        dataloader._MultiProcessingDataLoaderIter,
    )  # fmt: skip
    return [table, *(dict(vars(owner)) for owner in owners)]


def test_everything_is_put_back() -> None:
    before = replaced()
    with contextlib.suppress(ZeroDivisionError), workers.no_sharing():
        inside = replaced()
        with workers.no_sharing():
            assert replaced() == inside
        assert replaced() == inside
        assert workers.is_active()
        raise ZeroDivisionError
    assert not workers.is_active()
    assert replaced() == before
    assert all(one != two for one, two in zip(before, inside, strict=True))


def test_the_mode_holds_until_its_last_thread_leaves() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with workers.no_sharing():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with workers.no_sharing():
        thread.start()
        inside.wait()
    assert workers.is_active()
    leave.set()
    thread.join()
    assert not workers.is_active()


class Gate:
    """Pickling it waits, so that a queue's thread is behind."""

    opened = threading.Event()

    def __reduce__(self) -> Any:
        self.opened.wait()
        return int, ()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_what_was_put_inside_goes_by_value_after_the_end_too(kind: str) -> None:
    import torch

    inbox = getattr(multiprocessing, kind)()
    tensor = torch.arange(6.0)
    Gate.opened.clear()
    with workers.no_sharing():
        inbox.put(Gate())
        inbox.put([tensor, tensor.to_sparse(), None])
    Gate.opened.set()
    assert inbox.get() == 0
    came, sparse, nothing = inbox.get()
    assert came.tolist() == sparse.to_dense().tolist() == tensor.tolist()
    assert nothing is None
    assert not tensor.is_shared()
    assert not came.is_shared()
    inbox.close()
    inbox.join_thread()


def test_who_kept_a_replaced_function_has_torchs_after_the_end() -> None:
    import torch
    from torch.multiprocessing import reductions

    with workers.no_sharing():
        kept = reductions.reduce_tensor
    function, _ = kept(torch.ones(2))
    assert function is reductions.rebuild_tensor


def test_what_somebody_replaced_later_is_left_alone() -> None:
    owner, table = SimpleNamespace(name="first"), {"key": "first"}
    patches = Patches()
    patches.attribute(owner, "name", "ours")
    patches.attribute(owner, "other", "ours")
    patches.entry(table, "key", "ours")
    owner.name, table["key"] = "theirs", "theirs"
    patches.undo()
    assert vars(owner) == {"name": "theirs"}
    assert table == {"key": "theirs"}


def test_a_large_message_is_read_whole_and_a_closed_pipe_is_an_end() -> None:
    inbox, outbox = multiprocessing.Pipe(duplex=False)
    message = bytes(range(256)) * 4096
    with workers.no_sharing():
        thread = threading.Thread(target=outbox.send_bytes, args=(message,))
        thread.start()
        assert inbox.recv_bytes() == message
        thread.join()
        outbox.close()
        with pytest.raises(EOFError):
            inbox.recv_bytes()
    inbox.close()


def test_pinned_batches_come_by_value(machine: Machine) -> None:
    machine.run("""
    import torch
    from gpumem_alloc import workers
    from torch.utils.data import DataLoader, TensorDataset
    data = torch.arange(2.0 * (1 << 20)).view(2, -1)
    with workers.no_sharing():
        loader = DataLoader(
            TensorDataset(data), num_workers=2, pin_memory=True, persistent_workers=True,
            multiprocessing_context="fork",
        )
        for _ in range(2):
            batches = [batch for (batch,) in loader]
            assert all(batch.is_pinned() for batch in batches)
            assert torch.equal(torch.cat(batches), data)
    assert "/dev/shm/torch" not in open("/proc/self/maps").read()
    assert not data.is_shared()
    del loader, batches
    """)


def test_the_table_in_the_docs_is_that_of_the_newest_results() -> None:
    from benchmarks.host.worker_transport import render, text

    newest = sorted((ROOT / "benchmarks" / "results" / "worker_transport").glob("*.json"))[-1]
    results = json.loads(newest.read_text())
    page = (ROOT / "docs" / "workers.md").read_text()
    assert newest.name in page
    assert render(results["summary"]) in page
    assert f"slower from {text(results['loses_from_bytes'])} on" in page
