"""The README's table is what the newest results file gives, and can be made again from it."""

from __future__ import annotations

import json

import pytest

from benchmarks import host_cost, table
from benchmarks.summary import summarise


@pytest.mark.parametrize("name", table.SECTIONS)
def test_the_readmes_table_is_the_newest_results_files(name: str) -> None:
    shown = table.section(table.README.read_text(), name)
    assert (shown or "") == table.expected(name), "run: python -m benchmarks.table --write"


def test_a_results_files_summary_follows_from_its_rows() -> None:
    for path in table.RESULTS.glob("*.json"):
        results = json.loads(path.read_text())
        assert results["summary"] == json.loads(json.dumps(summarise(results["rows"]))), path
        assert results["machine"]["gpumem_alloc"], path
        assert results["command"].startswith("python -m benchmarks."), path


def test_host_costs_ratios_follow_from_their_rows() -> None:
    for path in table.HOST_COST.glob("*.json"):
        results = json.loads(path.read_text())
        for allocator, ratios in results["ratios"].items():
            assert ratios == host_cost.ratios(results["rows"], allocator), (path, allocator)
        assert results["machine"]["gpumem_alloc"], path


def test_a_section_is_replaced_and_nothing_else() -> None:
    begin, end = table.markers("results")
    readme = f"before\n{begin}\nold\n{end}\nafter\n"
    assert table.section(readme, "results") == "old\n"
    written = table.with_section(readme, "results", "new \\1\n")
    assert written == f"before\n{begin}\nnew \\1\n{end}\nafter\n"
    with pytest.raises(ValueError, match="results:begin"):
        table.with_section("no markers", "results", "new\n")
