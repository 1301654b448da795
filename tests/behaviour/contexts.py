"""Stacks of a recorded history, against what the program knows of its own calls"""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import torch, trace

Stack = list[tuple[str, int]]
_SIZE = 512


def _record(context: str | None = "all", stacks: str = "python") -> None:
    if context is None:
        torch.cuda.memory._record_memory_history(None)
    else:
        torch.cuda.memory._record_memory_history(context=context, stacks=stacks)


def _stack() -> Stack:
    """Names and lines of the caller's frames, innermost first."""
    found: Stack = []
    frame = sys._getframe(1)
    while frame is not None:
        found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _allocate() -> Any:
    return torch.empty(_SIZE, dtype=torch.uint8, device="cuda")


def _recorded(action: str = "alloc") -> list[Stack]:
    return [
        [(frame["name"], frame["line"]) for frame in entry.get("frames", [])]
        for entry in trace()
        if entry["action"] == action
    ]


# One line for the stack and the allocation: both have the same lines then.
def _here() -> Stack:
    return (_stack(), _allocate())[0]


def _expected(stack: Stack) -> Stack:
    """What an allocation of _here() has: the frame of _allocate() on top of it."""
    return [("_allocate", _allocate.__code__.co_firstlineno + 1), *stack]


def _by_recursion(depth: int) -> Stack:
    if depth > 0:
        return _by_recursion(depth - 1)
    return _here()


def _by_two_lines(number: int) -> Stack:
    if number % 2:
        return _here()
    return _here()


def _by_two_calls_of_a_line(number: int) -> Stack:
    return (number % 2 and _here()) or _here()


def _by_new_code(number: int) -> Stack:
    """Code that is gone after the call: the next may lie where it was."""
    names: dict[str, Any] = {"_here": _here}
    exec("\n" * (number % 5) + f"def made{number % 3}(): return _here()", names)
    stack: Stack = names[f"made{number % 3}"]()
    return stack


def _generated() -> Iterator[Stack]:
    while True:
        yield _here()


def _by_a_generator(running: Iterator[Stack], number: int) -> Stack:
    if number % 2:
        return next(running)
    return next(running)


_WAYS: tuple[Callable[[int], Stack], ...] = (
    _by_recursion,
    _by_two_lines,
    _by_two_calls_of_a_line,
    _by_new_code,
)


def _run(seed: int, count: int) -> list[Stack]:
    choices = random.Random(seed)
    # A generator of its own: two threads cannot run one at a time.
    ways: tuple[Callable[[int], Stack], ...]
    ways = (*_WAYS, functools.partial(_by_a_generator, _generated()))
    return [choices.choice(ways)(choices.randrange(6)) for _ in range(count)]


@behaviour()
def every_allocation_has_the_stack_of_its_call() -> None:
    _record()
    stacks = [_expected(stack) for stack in _run(seed=1, count=400)]
    assert _recorded() == stacks


@behaviour()
def stacks_stay_right_where_none_comes_twice() -> None:
    _record()
    stacks = [_expected(_by_recursion(depth)) for depth in range(100)]
    stacks += [_expected(_by_two_lines(number)) for number in range(40)]
    stacks += [_expected(_by_recursion(depth)) for depth in range(120, 160)]  # very deep ones
    assert _recorded() == stacks


@behaviour()
def a_free_has_the_stack_of_what_freed_it() -> None:
    _record()
    for number in range(20):
        tensor = _allocate()
        if number % 2:
            tensor = None
        else:
            del tensor
    lines = [stack[0][1] for stack in _recorded("free_requested")]
    assert len(lines) == 20
    assert lines == lines[:2] * 10
    assert lines[0] == lines[1] + 2


@behaviour()
def stacks_of_threads_are_their_own() -> None:
    _record()
    found: dict[int, list[Stack]] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: _run(seed, 100)}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stacks = [_expected(stack) for stacks in found.values() for stack in stacks]
    assert sorted(_recorded()) == sorted(stacks)


@behaviour()
def stacks_are_right_after_a_change_of_what_is_recorded() -> None:
    for stacks in ("python", "all", "python", "all"):
        _record(stacks=stacks)
        expected = [_expected(stack) for stack in _run(seed=2, count=5)]
        names = {name for stack in expected for name, _ in stack}
        found = _recorded()
        if stacks == "all":
            assert all(any("at::" in name for name, _ in stack) for stack in found)
            found = [[frame for frame in stack if frame[0] in names] for stack in found]
        assert [stack[:2] for stack in found] == [stack[:2] for stack in expected]
        _record(None)
        _run(seed=2, count=5)


@behaviour()
def scripted_functions_are_in_the_stack() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unit = torch.jit.CompilationUnit(
            "def first(x):\n  return x.new_empty([512])\n"
            "def second(x):\n  y = 1\n  return x.new_empty([512])\n"
        )
    data = _allocate()
    calls = [unit.first, unit.second, data.new_empty]
    arguments = [data, data, [_SIZE]]
    _record()
    for number in (0, 0, 1, 2, 0, 2, 2, 1, 1, 2):
        calls[number](arguments[number])
    seen = [{name for name, _ in stack} & {"first", "second"} for stack in _recorded()]
    names: list[set[str]] = [{"first"}, {"second"}, set()]
    assert seen == [names[number] for number in (0, 0, 1, 2, 0, 2, 2, 1, 1, 2)]


@behaviour()
def a_backward_pass_has_no_stack_of_python_or_that_of_its_call() -> None:
    class Double(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, value: Any) -> Any:
            return value.view_as(value)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            _allocate()
            return gradient

    leaf = torch.empty(128, device="cuda", requires_grad=True)
    _record()
    for _ in range(3):
        Double.apply(leaf).backward(torch.empty(128, device="cuda"))
    stacks = [stack for stack in _recorded() if stack and stack[0][0] == "_allocate"]
    assert len(stacks) == 3
    assert stacks[0] == stacks[1] == stacks[2]
    assert stacks[0][1][0] == "backward"
