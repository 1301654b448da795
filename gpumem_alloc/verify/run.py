"""Runs every attack for a level of the no-sharing mode, and judges what came of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

from gpumem_alloc import _C, door
from gpumem_alloc.errors import OptionError
from gpumem_alloc.options import options as options_in_force
from gpumem_alloc.options import resolve
from gpumem_alloc.verify.children import Answer, Job, run_jobs
from gpumem_alloc.verify.machines import Side
from gpumem_alloc.verify.probe import probe
from gpumem_alloc.verify.promises import LEVELS, PROMISES, Level, Place, Promise, certainty
from gpumem_alloc.verify.report import Check, Report

HOST = "the driver on the CPU"
_PACKAGE = "gpumem_alloc.verify"
_PLACES: dict[str, tuple[str, int]] = {  # module, seconds for an attack
    "host": (f"{_PACKAGE}.on_host", 20),
    "card": (f"{_PACKAGE}.on_card", 45),
    "two cards": (f"{_PACKAGE}.on_card", 45),
    "processes": (f"{_PACKAGE}.on_processes", 60),
}
NOTHING: Mapping[str, Any] = {"torch": True, "cards": 0, "name": "", "why": "no GPU was asked for"}
ALONE = ("limit",)  # it looks at what the whole card holds


def verify_isolation(isolation: str | None = None) -> Report:
    """Attack every promise of the no-sharing mode, each in a process of its own.

    `isolation` is a level; by default the one in force (enable(), GPUMEM_ALLOC_CONF), else
    "strict". Other options are those in force. Without a GPU the attacks are made on the driver on
    the CPU, and the report says which were not. Takes up to a minute and a half. Raises OptionError
    for a level that does not exist, or other options that do not go with it.
    """
    given = _given_options()
    level = _level(isolation, given)
    return run(level, {**given, "isolation": level})


def _given_options() -> dict[str, object]:
    """Return the options in force that are not defaults."""
    parsed = vars(options_in_force()) if door.is_enabled() else _C.parse_options(resolve({}))
    defaults = _C.parse_options("")
    return {key: value for key, value in parsed.items() if value != defaults[key]}


def _level(isolation: str | None, given: Mapping[str, object]) -> Level:
    wanted = isolation
    if wanted is None:
        of_strategy = "tensor" if given.get("strategy") == "isolated" else "strict"
        wanted = str(given.get("isolation", of_strategy))
    for level in LEVELS:
        if level == wanted:
            return level
    raise OptionError(
        f"verify_isolation(): there is no level {wanted!r}.\n"
        f"The levels are {', '.join(LEVELS)}; `off` promises nothing.\n"
        'Write gpumem_alloc.verify_isolation("strict"), or leave it out for the one in force.'
    )


def run(
    level: Level, options: Mapping[str, object], places: Collection[Place] = get_args(Place)
) -> Report:
    """Attack an allocator with `options`, and hold it to what `level` promises.

    With "card" in `places` attacks are made on a card if there is one, and else on the host.
    """
    options = {**options, "limit_mb": 0, "on_violation": "report"}
    in_force = _C.parse_options(resolve(options))
    found = probe(dict(options)) if "card" in places else NOTHING
    usable = _usable(found, places)
    chosen = {promise.name: _place(promise, usable, found) for promise in PROMISES}
    answers = _answers(chosen, options)
    checks = [
        _check(promise, chosen[promise.name], answers, level, in_force) for promise in PROMISES
    ]
    device = found["name"] if found["cards"] else f"{HOST} ({found['why']})"
    return Report(level, device, checks)


def _usable(found: Mapping[str, Any], places: Collection[Place]) -> set[Place]:
    usable: set[Place] = {"processes"} if found["torch"] else set()
    if found["cards"]:
        usable |= {"card", "two cards"} if found["cards"] > 1 else {"card"}
    else:
        usable.add("host")
    return usable & set(places)


def _place(promise: Promise, usable: Collection[Place], found: Mapping[str, Any]) -> str:
    """Return where a promise is attacked, or why it is not."""
    for place in promise.places:
        if place in usable:
            return place
    if "processes" in promise.places:
        return "torch is not installed" if not found["torch"] else "not asked for"
    return "there is one GPU, and it takes two" if found["cards"] else str(found["why"])


def _answers(places: Mapping[str, str], options: Mapping[str, object]) -> dict[str, Answer]:
    sides: tuple[Side, ...] = get_args(Side)
    jobs: list[Job] = [
        {
            "id": f"{name}/{side}", "module": _PLACES[place][0], "name": name, "side": side,
            "options": options, "alone": name in ALONE and place == "card",
            "seconds": _PLACES[place][1],
        }
        for name, place in places.items()
        if place in _PLACES
        for side in sides
    ]  # fmt: skip
    # What takes longest begins first: workers that import torch again.
    jobs.sort(key=lambda job: str(job["name"]), reverse=True)
    jobs.sort(key=lambda job: (job["alone"], job["module"] != _PLACES["processes"][0]))
    module = _PLACES["host"][0]
    on_host = [job for job in jobs if job["module"] == module]
    in_torch = [job for job in jobs if job["module"] != module]
    cpus = os.cpu_count() or 2
    with ThreadPoolExecutor(2) as threads:
        host = threads.submit(run_jobs, on_host, 2, [module])
        torch = threads.submit(
            run_jobs, in_torch, max(2, min(8, cpus // 2)), ["torch", _PLACES["card"][0]]
        )
        return {**host.result(), **torch.result()}


def _check(
    promise: Promise,
    place: str,
    answers: Mapping[str, Answer],
    level: Level,
    in_force: Mapping[str, Any],
) -> Check:
    def told(side: Side) -> Answer:
        not_run = {"stopped": None, "text": f"not run: {place}", "error": ""}
        return answers.get(f"{promise.name}/{side}", not_run)

    native, ours = told("native"), told("ours")
    promised = certainty(promise, level, in_force)
    held, why = _judged(ours, promised, level)
    is_modelled = place == "host" and native["stopped"] is not None
    model = "caching (modelled): " if is_modelled else ""
    return Check(
        name=promise.name,
        promise=promise.promise,
        attack=promise.attack,
        native=model + _text(native),
        ours=_text(ours),
        held=held,
        why=why,
    )


def _text(answer: Answer) -> str:
    return str(answer["text"] or f"failed: {answer['error']}")


def _judged(ours: Answer, promised: str, level: Level) -> tuple[bool | None, str]:
    """Say whether a promise was held, and why not; what failed for unknown reasons was not."""
    if ours["stopped"] is None and not ours["error"]:
        return None, str(ours["text"])
    if promised != "certain":
        does = "does not promise this" if promised == "never" else "holds this only sometimes"
        return None, f"{level} {does}"
    if ours["error"]:
        return False, f"the attack could not be finished: {ours['error']}"
    return ours["stopped"], "" if ours["stopped"] else f"{level} promises this: {ours['text']}"
