"""The table of what the no-sharing mode costs, and how its allocators are started."""

from __future__ import annotations

import pytest

from benchmarks.allocators import ALLOCATORS, find
from benchmarks.host import attacks
from benchmarks.report import isolation_table
from benchmarks.report.summary import LOCKSTEP, Summary, summarise
from benchmarks.report.verdicts import verdicts
from benchmarks.store import Row
from tests.results_rows import STEADY, card, failed, results, row


def slower(allocator: str, factor: float, **changes: object) -> Row:
    """A run in lockstep whose steps take `factor` times PyTorch's default's."""
    return row(allocator, [factor * each for each in STEADY], group=0, **changes)


def summary(*rows: Row) -> Summary:
    """One setting with PyTorch's default beside the rows."""
    alone = row("native", kind="peaks")
    return summarise(results(alone, slower("native", 1.0), *rows))[0]


@pytest.mark.parametrize(
    ("allocator", "factor", "is_losing"),
    [
        ("isolated-stream", 1.01, False),
        ("isolated-stream", 1.03, True),
        ("isolated-packed", 1.29, False),
        ("isolated-packed", 1.31, True),
        ("isolated-tensor", 4.9, False),
        ("isolated-tensor", 5.1, True),
        ("isolated-strict", 50.0, False),
    ],
)
def test_a_level_loses_where_it_costs_more_than_it_may(
    allocator: str, factor: float, is_losing: bool
) -> None:
    found = summary(slower("no-caching", 5.0), slower(allocator, factor))
    wanted = [("buffers", allocator)] if is_losing else []
    assert isolation_table.losing(found) == wanted
    assert ("✗" in isolation_table.render(found, "").split("step / default:")[0]) is is_losing


def test_tensor_is_compared_with_no_caching_of_its_own_session() -> None:
    alone = row("native", kind="peaks")
    rows = [slower("native", 1.0), slower("no-caching", 5.0), slower("isolated-tensor", 4.0)]
    elsewhere = [each | {"group": 1} for each in (slower("native", 1.0), slower("no-caching", 2.0))]
    found = summarise(results(alone, *rows, *elsewhere))[0]
    assert isolation_table.losing(found) == []
    shown = isolation_table.render(found, "")
    assert "| 4.000 (4.000–4.000) | 0.800 (0.800–0.800) |" in shown


def test_the_mark_stands_beside_the_figure_that_loses() -> None:
    found = summary(slower("no-caching", 5.0), slower("isolated-tensor", 6.0))
    shown = isolation_table.render(found, "")
    assert "| 6.000 (6.000–6.000) | 1.200 (1.200–1.200) ✗ |" in shown


def test_a_level_that_fails_loses() -> None:
    found = summary(failed("isolated-tensor", "out of memory"))
    assert isolation_table.losing(found) == [("buffers", "isolated-tensor")]


def test_card_memory_is_shown_beside_that_of_the_default() -> None:
    found = summary(row("isolated-packed", kind="peaks", card=card(1210)))
    assert "| 1.10 |" in isolation_table.render(found, "")


def test_without_a_level_there_is_no_table() -> None:
    assert isolation_table.render(summary(slower("no-caching", 5.0)), "") == ""


def test_every_level_is_an_allocator_of_ours() -> None:
    for name in isolation_table.LEVELS:
        level = name.removeprefix("isolated-")
        assert ALLOCATORS[name].environment == {"GPUMEM_ALLOC_CONF": f"isolation:{level}"}


def test_memcheck_is_started_through_its_command() -> None:
    assert find("memcheck").wrapper[0] == "compute-sanitizer"
    assert find("native").wrapper == ()


def test_memcheck_after_native_is_compared_step_by_step() -> None:
    """No driver calls, the card's memory of the pass for peaks, and never among ours."""
    found = summary(
        slower("isolated-packed", 1.1),
        row("memcheck", kind="peaks", card=card(1650)),
        row("native", round=1),
        row("memcheck", [30 * each for each in STEADY], round=1),
    )
    shown = isolation_table.render(found, "")
    ratios = "30.000 (30.000–30.000) | – | 1° | 1.50 | –"
    assert f"| {find('memcheck').label} | {ratios} |" in shown
    assert f"| {find('memcheck').label} | 1 | 30.00 | 1.50 | – |" in (
        isolation_table.render_costs(found)
    )
    assert {each.allocator for each in verdicts(found)} == {"isolated-packed"}
    native = found.entry("buffers", "native")
    assert native is not None
    assert native.times is not None
    assert native.times.way == LOCKSTEP  # its run beside memcheck does not count there


def test_a_memcheck_that_found_something_has_no_figures() -> None:
    wrong = failed("memcheck", "exit code 9: ========= ERROR SUMMARY: 3 errors", kind="peaks")
    found = summary(slower("isolated-packed", 1.1), wrong)
    assert f"| {find('memcheck').label} | failed | – |" in isolation_table.render(found, "")
    assert isolation_table.losing(found) == []


def attack(level: str, held: bool | None, ours: str) -> dict[str, object]:
    """A row of a results file of attacks."""
    words = {"name": "overrun", "attack": "writes behind it", "native": "changed a | tensor"}
    return {"level": level, "device": "card", **words, "ours": ours, "held": held, "why": ""}


def test_a_table_of_attacks_says_what_was_held_and_what_got_through() -> None:
    rows = [
        attack("strict", True, "faulted"),
        attack("stream", None, "changed another tensor"),
        attack("tensor", False, "went unnoticed"),
        attack("packed", None, "not run: no GPU"),
    ]
    head, _, line = attacks.render(rows).splitlines()
    assert head == "| attack | PyTorch | `stream` | `packed` | `tensor` | `strict` |"
    assert line == (
        "| overrun | changed a \\| tensor | (changed another tensor) | – | "
        "**got through**: went unnoticed | held |"
    )


def test_the_costs_go_from_the_lowest_to_the_highest_workload() -> None:
    found = summary(
        slower("isolated-packed", 1.1),
        slower("native", 1.0, workload="other"),
        slower("isolated-packed", 1.3, workload="other"),
    )
    (line,) = (
        line for line in isolation_table.render_costs(found).splitlines() if "packed" in line
    )
    assert line.split("|")[2:4] == [" 2 ", " 1.10–1.30 "]
