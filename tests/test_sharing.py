"""CUDA tensors between processes: what is sent arrives, and nothing else; memory comes back."""

from __future__ import annotations

import pytest

from tests.rig.machine import Machine

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("bridge")]

# Starts a receiver; `exchange()` sends it tensors and checks what it says of them.
_RECEIVER = """
    import gc, os, torch, gpumem_alloc, inside, peers
    noise = 0 if inside.ON_RIG else 4  # files that a real driver opens when it likes
    def open_files():
        return len(os.listdir("/proc/self/fd"))
    def exchange(tensors):
        expected = [tensor.detach().cpu() for tensor in tensors]
        inbox.put(tensors)
        received = outbox.get(timeout=60)
        assert not isinstance(received, str), received
        assert received == [tensor.tolist() for tensor in expected]
        assert outbox.get(timeout=60) == "written"
        assert all((tensor.detach().cpu() == 7).all() for tensor in tensors)
        assert outbox.get(timeout=60) == "let go"
    def start(method="spawn", target=peers.receive, **options):
        global mp, inbox, outbox, child
        mp = torch.multiprocessing.get_context(method)
        inbox, outbox = mp.Queue(), mp.Queue()
        child = mp.Process(target=target, args=(inbox, outbox), kwargs=options, daemon=True)
        child.start()
    def finish():
        inbox.put(None)
        first, last = outbox.get(timeout=60)
        assert last <= first + noise, (first, last)
        child.join(60)
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_is_sent_arrives_and_comes_back(machine: Machine, method: str) -> None:
    machine.run(
        _RECEIVER
        + f"""
    gpumem_alloc.enable(door="bridge")
    start("{method}")
    exchange([torch.arange(10).cuda()])
    gc.collect()
    torch.cuda.ipc_collect()
    allocated, files = torch.cuda.memory_allocated(), open_files()
    for size in (1, 100, 5_000, 300_000, 1_000_000):
        whole = torch.arange(size)
        tensors = [whole.cuda(), whole.cuda()[size // 2 :]]
        tensors.append(torch.nn.Parameter(whole.float().cuda()))
        tensors.append(tensors[0].view(-1)[:1])
        tensors.append(whole.cuda().share_memory_())
        exchange(tensors)
        exchange(tensors)  # again: they are exported already
    del tensors
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == allocated == 0
    assert torch.cuda.memory_reserved() == 0
    assert open_files() <= files + noise
    finish()
    gpumem_alloc.audit()
    """
    )


def test_tensors_come_from_a_child_through_a_pipe(machine: Machine) -> None:
    machine.run("""
        import gc, os, torch, gpumem_alloc, peers
        gpumem_alloc.enable(door="bridge")
        mp = torch.multiprocessing.get_context("spawn")
        ours, theirs = mp.Pipe()
        sizes = [10, 20, 100_000, 5_000_000]
        child = mp.Process(target=peers.send, args=(theirs, sizes), daemon=True)
        child.start()
        torch.ones(1).cuda()
        files = len(os.listdir("/proc/self/fd"))
        tensors = ours.recv()
        for size, tensor in zip(sizes, tensors, strict=True):
            assert torch.equal(tensor.cpu(), torch.arange(size))
        assert torch.cuda.memory_allocated() == 0  # it is not ours
        tensors[0].record_stream(torch.cuda.Stream())
        tensors[0].copy_(torch.arange(10) * 2)
        assert tensors[0].tolist() == list(range(0, 20, 2))
        try:
            tensors[0].untyped_storage()._share_cuda_()
        except RuntimeError as error:
            assert "received from another process" in str(error)
        del tensors, tensor
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= files
        ours.send(None)
        child.join(60)
        assert child.exitcode == 0
    """)


# On the stand-in alone: a real card lets no process open its own event for others.
def test_a_process_may_open_what_it_shares_itself(rig: Machine) -> None:
    rig.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable(door="bridge")
        tensors = [torch.arange(size).cuda() for size in (10, 11, 200_000)]
        shared = [tensor.untyped_storage()._share_cuda_() for tensor in tensors]
        opened = [torch.UntypedStorage._new_shared_cuda(*one) for one in shared]
        for tensor, storage in zip(tensors, opened):
            assert storage.data_ptr() != tensor.data_ptr()
            seen = torch.empty(0, dtype=torch.int64, device="cuda").set_(storage)
            assert torch.equal(seen.cpu(), tensor.cpu())
        # One mapping serves all that lies on the same chunk.
        assert shared[0][1] == shared[1][1]
        distances = [t.data_ptr() - s.data_ptr() for t, s in zip(tensors, opened)]
        assert distances[0] == distances[1]
    """)


def test_a_receiver_without_the_bridge_is_told_and_the_sender_gets_its_memory_back(
    machine: Machine,
) -> None:
    machine.run(
        _RECEIVER
        + """
    gpumem_alloc.enable(door="bridge")
    start(door=None)
    tensor = torch.arange(1000).cuda()
    inbox.put([tensor])
    text = outbox.get(timeout=60)
    assert text.startswith("AllocatorError: receiving this CUDA tensor needs gpumem_alloc"), text
    assert "gpumem_alloc.enable(" in text and len(text.splitlines()) == 3, text
    del tensor
    gc.collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == 0
    finish()
    """
    )


def test_an_argument_comes_before_a_late_enable(machine: Machine) -> None:
    run = machine.run("""
        import torch, gpumem_alloc, peers
        gpumem_alloc.enable(door="bridge")
        mp = torch.multiprocessing.get_context("spawn")
        child = mp.Process(target=peers.look_at, args=(torch.arange(9).cuda(),), daemon=True)
        child.start()
        child.join(60)
        assert child.exitcode == 1
    """)
    assert "AllocatorError: receiving this CUDA tensor needs" in run.stderr


def test_memory_of_cuda_malloc_reaches_pytorchs_own_allocator(machine: Machine) -> None:
    machine.run(
        _RECEIVER
        + """
    gpumem_alloc.enable(door="bridge", strategy="split")
    start(door=None)
    exchange([torch.arange(1000).cuda(), torch.arange(2_000_000).cuda()])
    finish()
    """
    )


def test_pytorchs_own_memory_reaches_ours(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc, peers
        gpumem_alloc.enable(door="bridge")
        mp = torch.multiprocessing.get_context("spawn")
        ours, theirs = mp.Pipe()
        child = mp.Process(target=peers.send, args=(theirs, [10, 2_000_000], None), daemon=True)
        child.start()
        tensors = ours.recv()
        assert torch.equal(tensors[0].cpu(), torch.arange(10))
        assert torch.equal(tensors[1].cpu(), torch.arange(2_000_000))
        del tensors
        ours.send(None)
        child.join(60)
        assert child.exitcode == 0
    """)


# On the stand-in alone: a real card lets no process open its own event for others.
def test_where_descriptors_may_not_be_taken_they_are_passed_along(rig: Machine) -> None:
    rig.run(
        _RECEIVER
        + """
    peers.forbid_taking_descriptors()
    gpumem_alloc.enable(door="bridge")
    start()
    exchange([torch.arange(10).cuda()])
    gc.collect()
    torch.cuda.ipc_collect()
    files = open_files()
    for size in (10, 300_000):
        exchange([torch.arange(size).cuda()])
    gc.collect()
    torch.cuda.ipc_collect()
    assert open_files() <= files + noise
    finish()
    # Torch's own function passes nothing along: the text says what to do.
    tensor = torch.arange(10).cuda()
    shared = tensor.untyped_storage()._share_cuda_()
    text = inside.raised(RuntimeError, lambda: torch.UntypedStorage._new_shared_cuda(*shared))
    assert "could not be taken over" in text and "torch.multiprocessing" in text, text
    """
    )


def test_a_sender_that_has_ended_is_named(machine: Machine) -> None:
    machine.run("""
        import inside, pickle, torch, gpumem_alloc, peers
        gpumem_alloc.enable(door="bridge")
        mp = torch.multiprocessing.get_context("spawn")
        ours, theirs = mp.Pipe()
        child = mp.Process(target=peers.send, args=(theirs, [10]), daemon=True)
        child.start()
        message = ours.recv_bytes()
        ours.send(None)
        child.join(60)
        text = inside.raised(RuntimeError, lambda: pickle.loads(message))
        assert f"process {child.pid}" in text and "has ended" in text, text
    """)


def test_both_ends_may_end_while_tensors_are_shared(machine: Machine) -> None:
    machine.run(
        _RECEIVER
        + """
    gpumem_alloc.enable(door="bridge")
    start(target=peers.keep)
    tensors = [torch.arange(size).cuda() for size in (10, 300_000)]
    inbox.put(tensors)
    assert outbox.get(timeout=60) == "kept"
    child.join(60)
    assert child.exitcode == 0
    """
    )


def test_exclusive_sharing_refuses_neighbours_and_takes_exclusive_pages(machine: Machine) -> None:
    machine.run("""
        import ctypes, torch, gpumem_alloc, inside
        gpumem_alloc.enable(door="bridge")
        shared = lambda tensor: tensor.untyped_storage()._share_cuda_()
        plain, neighbour = torch.arange(1000).cuda(), torch.arange(1000).cuda()
        shared(plain)
        gpumem_alloc.share_exclusively(True)
        text = inside.raised(RuntimeError, lambda: shared(neighbour))
        assert "shares pages with other memory" in text and "exclusive_pages()" in text, text
        with gpumem_alloc.exclusive_pages():
            dirty = torch.full((1 << 21,), 1, dtype=torch.uint8).cuda()
            del dirty
            own = [torch.arange(size).cuda() for size in (10, 1000, 300_000)]
        del plain, neighbour
        for tensor in own:
            handle = shared(tensor)
            assert handle[3] == 0  # it begins where its pages begin
            assert torch.equal(tensor.cpu(), torch.arange(len(tensor)))
            if inside.ON_RIG:  # the CPU sees what a receiver would
                storage = torch.UntypedStorage._new_shared_cuda(*handle)
                end = storage.nbytes()
                behind = ctypes.string_at(storage.data_ptr() + end, -end % (2 << 20))
                assert not any(behind)
        gpumem_alloc.share_exclusively(False)
        shared(torch.arange(1000).cuda())
    """)


def test_the_bridge_is_needed(machine: Machine) -> None:
    machine.run("""
        import gpumem_alloc, inside
        for call in (lambda: gpumem_alloc.share_exclusively(True),
                     lambda: gpumem_alloc.exclusive_pages().__enter__()):
            text = inside.raised(gpumem_alloc.AllocatorError, call)
            assert 'gpumem_alloc.enable(door="bridge")' in text, text
    """)


@pytest.mark.parametrize(
    "call", ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"]
)
def test_a_receiver_whose_card_refuses_keeps_nothing(rig: Machine, call: str) -> None:
    rig.run(f"""
        import os, torch, gpumem_alloc, inside
        gpumem_alloc.enable(door="bridge")
        tensor = torch.arange(300_000).cuda()
        shared = tensor.untyped_storage()._share_cuda_()
        files = len(os.listdir("/proc/self/fd"))
        inside.fail("{call}", 1, times=1)
        text = inside.raised(RuntimeError, lambda: torch.UntypedStorage._new_shared_cuda(*shared))
        assert "{call}" in text, text
        assert len(os.listdir("/proc/self/fd")) == files
        opened = torch.UntypedStorage._new_shared_cuda(*shared)
        seen = torch.empty(0, dtype=torch.int64, device="cuda").set_(opened)
        assert torch.equal(seen.cpu(), tensor.cpu())
    """)


# On the stand-in alone: a real card lets no process open its own event for others.
def test_a_sender_without_descriptors_left_says_how_many_there_are(rig: Machine) -> None:
    rig.run("""
        import os, resource, torch, gpumem_alloc, inside
        gpumem_alloc.enable(door="bridge")
        tensor = torch.arange(300_000).cuda()
        files = os.dup(0)  # the next number that is free
        os.close(files)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        text = inside.raised(RuntimeError, lambda: tensor.untyped_storage()._share_cuda_())
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert f"may have {files}" in text and "ulimit -n" in text, text
        torch.UntypedStorage._new_shared_cuda(*tensor.untyped_storage()._share_cuda_())
    """)


def test_memory_without_descriptors_says_so(rig: Machine) -> None:
    rig.run(
        """
        import torch, gpumem_alloc, inside
        gpumem_alloc.enable(door="bridge")
        tensor = torch.arange(300_000).cuda()
        text = inside.raised(RuntimeError, lambda: tensor.untyped_storage()._share_cuda_())
        assert "cannot be sent to another process" in text and "file descriptor" in text, text
        """,
        env={"RIG_NO_EXPORT": "1"},
    )
