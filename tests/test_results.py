"""What the README and docs/benchmarks.md show is what the results files give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.host import host_cost
from benchmarks.report import isolation_table, readme_pictures, table, verdicts
from benchmarks.report.summary import Summary
from benchmarks.store import load


@pytest.fixture(scope="module")
def summaries() -> list[Summary]:
    return table.summaries()


@pytest.mark.parametrize("name", table.SECTIONS)
def test_the_readmes_sections_are_those_of_the_results_files(name: str) -> None:
    shown = table.section(table.README.read_text(), name)
    assert shown == table.SECTIONS[name](), "run: python -m benchmarks.report.table --write"


def test_the_page_of_all_allocators_is_that_of_the_results_files() -> None:
    assert table.PAGE.read_text() == table.page(), "run: python -m benchmarks.report.table --write"


@pytest.mark.parametrize("page", table.OTHER_SECTIONS, ids=lambda page: page.stem)
def test_the_sections_of_other_pages_are_those_of_the_results_files(page: Path) -> None:
    for name, make in table.OTHER_SECTIONS[page].items():
        shown = table.section(page.read_text(), name)
        assert shown == make(), "run: python -m benchmarks.report.table --write"


def test_the_pictures_show_what_the_results_files_say(summaries: list[Summary]) -> None:
    wanted = [each for summary in summaries[:1] for each in readme_pictures.pictures(summary)]
    if (found := table.newest(table.SCALE)) is not None:
        wanted.append(readme_pictures.scale_picture(found[0]["rows"]))
    stale = [
        picture.name
        for picture in wanted
        if not readme_pictures.is_current(table.PICTURES / f"{picture.name}.png", picture)
    ]
    assert stale == [], "run: python -m benchmarks.report.table --write"
    kept = {path.stem for path in table.PICTURES.glob("*.png")}
    assert kept == {picture.name for picture in wanted}, "a picture that nothing makes any more"


def test_every_losing_row_of_ours_has_a_sentence_and_no_other(summaries: list[Summary]) -> None:
    missing, needless = verdicts.unexplained(summaries[0])
    assert [each.key for each in missing] == [], "add a sentence to benchmarks/report/why.json"
    assert needless == [], "take the sentence out of benchmarks/report/why.json"


def test_every_level_that_costs_too_much_has_a_sentence_and_no_other() -> None:
    summary = table.isolation_summary()
    assert summary is not None
    missing, needless = isolation_table.unexplained(summary)
    assert missing == [], "add a sentence to benchmarks/report/why.json"
    assert needless == [], "take the sentence out of benchmarks/report/why.json"


def test_results_files_say_with_what_they_were_made() -> None:
    for path in table.result_files():
        results = load(path)
        for session in results.sessions:
            assert session["environment"]["gpumem_alloc"], path
            assert session["environment"]["git_id"], path
            assert session["command"].startswith("python -m "), path
        assert all("summary" not in row for row in results.rows)


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
