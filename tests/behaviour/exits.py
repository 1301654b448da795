"""Ends of a process in every awkward state: the exit code as ever, and nothing printed."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any

from tests.behaviour.own_allocator import Own
from tests.behaviour.table import behaviour
from tests.behaviour.tools import MIB, empty, filled, torch
from tests.rig import inside

_kept: list[Any] = []  # goes when the interpreter takes its modules apart


def _keep() -> None:
    _kept.extend([filled(100, 1), filled(70_000, 2), filled(5 * MIB, 3)])


@behaviour(exit_code=0)
def unused() -> None:
    torch.cuda.is_available()


@behaviour(exit_code=0)
def with_live_tensors() -> None:
    _keep()


@behaviour(exit_code=0)
def with_tensors_in_a_cycle() -> None:
    cycle: list[Any] = [filled(5 * MIB, 1)]
    cycle.append(cycle)


@behaviour(exit_code=1, stderr="KeyError: 'of the program'")
def by_an_exception_with_tensors_in_its_frames() -> None:
    tensors = [filled(5 * MIB, 1)]
    _keep()
    raise KeyError(f"of the program{'' if tensors else 's'}")


@behaviour(exit_code=1, stderr="torch.OutOfMemoryError: CUDA out of memory.")
def by_running_out_of_memory() -> None:
    import warnings

    _keep()
    warnings.simplefilter("ignore")
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    torch.cuda.set_per_process_memory_fraction((64 * MIB) / torch.cuda.mem_get_info()[1])
    empty(128 * MIB)


@behaviour(exit_code=3)
def by_sys_exit() -> None:
    tensors = [filled(5 * MIB, 1)]
    sys.exit(3 if tensors else 4)


@behaviour(exit_code=0)
def by_os_exit() -> None:
    _keep()
    os._exit(0)


@behaviour(exit_code=-signal.SIGTERM)
def by_a_signal() -> None:
    _keep()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


@behaviour(exit_code=-signal.SIGINT, stderr="KeyboardInterrupt")
def by_the_keyboard() -> None:
    _keep()
    raise KeyboardInterrupt


@behaviour(exit_code=0)
def by_becoming_another_program() -> None:
    _keep()
    os.execv("/bin/true", ["true"])


@behaviour(exit_code=0)
def with_a_handler_that_allocates_and_frees() -> None:
    def last() -> None:
        _kept.clear()
        assert int(filled(5 * MIB, 9)[7].cpu()) == 9
        torch.cuda.empty_cache()

    atexit.register(last)
    _keep()


@behaviour(exit_code=0)
def with_a_finalizer_that_frees() -> None:
    class Holder:
        pass

    holder = Holder()
    tensors = [filled(5 * MIB, 1)]
    weakref.finalize(holder, tensors.clear)
    _kept.append(holder)


@behaviour(exit_code=0)
def with_a_daemon_thread_that_holds_tensors() -> None:
    started = threading.Event()

    def work() -> None:
        tensors = [filled(size, 1) for size in (100, 70_000, 5 * MIB)]
        started.set()
        time.sleep(1000 + len(tensors))

    threading.Thread(target=work, daemon=True).start()
    started.wait()


@behaviour(exit_code=0)
def with_a_thread_that_ends_later() -> None:
    def work() -> None:
        time.sleep(0.1)
        _kept.append(filled(5 * MIB, 1))

    threading.Thread(target=work).start()
    _keep()


@behaviour(exit_code=0)
def with_threads_whose_tensors_outlive_them() -> None:
    threads = [threading.Thread(target=_keep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@behaviour(exit_code=0)
def in_a_forked_child_with_inherited_tensors() -> None:
    _keep()
    child = os.fork()
    if child == 0:
        _kept.clear()
        return  # the child ends as a program does
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(code)


@behaviour(exit_code=0)
def after_a_forked_child_left_in_a_hurry() -> None:
    _keep()
    child = os.fork()
    if child == 0:
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@behaviour(exit_code=0)
def with_a_graph_and_its_pool() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor = empty(5 * MIB).zero_()  # PyTorch warns of an empty graph
    graph.replay()
    _kept.extend([graph, tensor])


@behaviour(exit_code=0)
def in_the_middle_of_using_a_pool() -> None:
    pool = torch.cuda.MemPool()
    use = torch.cuda.use_mem_pool(pool)
    use.__enter__()
    _kept.extend([filled(5 * MIB, 1), pool, use])


@behaviour(exit_code=0)
def with_a_pool_over_an_allocator_of_its_own() -> None:
    own = Own()
    pool = own.pool()
    with torch.cuda.use_mem_pool(pool):
        _kept.append(filled(5 * MIB, 1))
    _kept.extend([pool, own])


@behaviour(exit_code=0)
def with_memory_that_waits_for_a_stream() -> None:
    side = torch.cuda.Stream()
    tensor = empty(5 * MIB)
    inside.hold(side)
    tensor.record_stream(side)
    del tensor


@behaviour(exit_code=0)
def while_history_is_recorded() -> None:
    torch.cuda.memory._record_memory_history(context="all", stacks="all")
    _keep()


@behaviour(exit_code=0)
def with_memory_of_a_library_never_deleted() -> None:
    torch.cuda.caching_allocator_alloc(5 * MIB)


@behaviour(exit_code=0)
def with_a_pinned_copy_under_way() -> None:
    source = torch.ones(5 * MIB, dtype=torch.uint8).pin_memory()
    _kept.append(source.to("cuda", non_blocking=True))


@behaviour(exit_code=0, gpu=True)
def while_kernels_run() -> None:
    tensor = torch.ones(1_000_000, device="cuda")
    torch.cuda._sleep(2_000_000_000)
    _kept.append(tensor * 2)
