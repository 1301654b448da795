"""The README's table is what the newest results file gives, and can be made again from it."""

from __future__ import annotations

import json

import pytest

from benchmarks import table
from benchmarks.summary import summarise


def test_the_readmes_table_is_the_newest_results_files() -> None:
    shown = table.section(table.README.read_text())
    assert (shown or "") == table.expected(), "run: python -m benchmarks.table --write"


def test_a_results_files_summary_follows_from_its_rows() -> None:
    for path in table.RESULTS.glob("*.json"):
        results = json.loads(path.read_text())
        assert results["summary"] == json.loads(json.dumps(summarise(results["rows"]))), path
        assert results["machine"]["gpumem_alloc"], path
        assert results["command"].startswith("python -m benchmarks."), path


def test_a_section_is_replaced_and_nothing_else() -> None:
    readme = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    assert table.section(readme) == "old\n"
    written = table.with_section(readme, "new \\1\n")
    assert written == f"before\n{table.BEGIN}\nnew \\1\n{table.END}\nafter\n"
    with pytest.raises(ValueError, match="results:begin"):
        table.with_section("no markers", "new\n")
