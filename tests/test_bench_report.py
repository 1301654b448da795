"""The HTML report, the pictures and the README's table on made-up rows."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.report import (
    capacity_table,
    charts,
    claims,
    outputs,
    picture,
    readme_pictures,
    readme_table,
    report,
)
from benchmarks.report.cells import markdown, plain
from benchmarks.report.summary import Summary, summarise
from benchmarks.store import Results, Row
from tests.results_rows import MIB, STEADY, card, failed, results, row, session

EVIL = "<script>alert(1)</script> & \"x\" 'y' $x^2_$ {{ 7 * 7 }} | `z`"
DRIVER = {"calls": {"cuMemMap": 9}, "ms": {"cuMemMap": 1.5}, "second_half_calls": 1,
          "second_half_ms": 0.5, "synchronisations": 2}  # fmt: skip


def study(allocator: str, size: int | None, **changes: Any) -> Row:
    made = {"kind": "capacity", "workload": "buffers", "allocator": allocator, "session": 0}
    return made | {"limit_gb": 24, "size": size, "unit": "buffers", "tries": []} | changes


def everything(workload: str = "buffers", **environment: Any) -> Results:
    """Rows of every kind, ours slower than the default."""
    named = {"workload": workload}
    rows = [row("native", kind="peaks", driver=DRIVER, **named), row("native", **named)]
    rows += [row("expandable", kind="peaks", card=card(1080), **named)]
    rows += [row("paged", kind="peaks", card=card(1000), driver=DRIVER, **named)]
    rows += [row("paged", [1.2 * ms for ms in STEADY], card=None, **named)]
    rows += [failed("rmm-pool", f"exit code 1: {EVIL}", **named)]
    rows += [study(name, size, **named) for name, size in (("native", 100), ("paged", 150))]
    no_margin = {"kind": "no_margin", "margin_percent": 2, "run_s": 1.0, "retries": 0, **named}
    rows += [{**no_margin, "allocator": "paged", "session": 0, "fits": True}]
    return results(*rows, sessions=[session(**environment)])


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(everything())[0]


class Elements(HTMLParser):
    """What a page is made of; complains where an element is closed that is not open."""

    EMPTY = ("meta", "br", "link", "img", "path", "use", "rect")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_report_is_one_file_that_needs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "made" / "report.html"
    report.write(everything(), path)
    page = path.read_text(encoding="utf-8")
    elements = Elements(page)
    assert elements.opened == []
    assert not {"script", "link", "img", "iframe", "object"} & set(elements.tags)
    sources = [
        value for name, value in elements.attributes if name in ("src", "href", "xlink:href")
    ]
    assert sources
    assert all(str(value).startswith("#") for value in sources)
    assert "url(" not in re.sub(r"url\(#\w+\)", "", page)
    assert "@import" not in page
    namespaces = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
    assert set(re.findall(r"https?://[^\"\s<]+", page)) == set(namespaces)
    assert "prefers-color-scheme: dark" in page
    # timeline and bars of the workload, step times, capacity, driver
    assert elements.tags.count("svg") == 5
    words_of_the_page = (
        "python -m benchmarks",
        "NVIDIA H200",
        "Runs that failed",
        "With no margin",
        "✗ step time 1.200 (1.200–1.200) of the fastest",
        "150 buffers in 24 GiB",
    )
    for words in words_of_the_page:
        assert words in page


def test_whatever_comes_from_a_file_is_only_text() -> None:
    page = report.render(everything(workload=EVIL, gpu=EVIL, git_id=EVIL, driver=None))
    elements = Elements(page)
    assert "script" not in elements.tags
    text = "".join(elements.text)
    assert text.count(EVIL) > 10
    assert "49" not in re.findall(r"\b49\b", text)


def test_a_report_of_nothing_and_of_failures_is_a_page() -> None:
    assert "No row was measured" in report.render(results())
    page = report.render(results(failed("paged", "boom", workload="gnn")))
    assert "boom" in page


def test_several_settings_have_a_section_each() -> None:
    rows = [row("native"), row("native", session=1)]
    page = report.render(results(*rows, sessions=[session(), session(gpu="NVIDIA L4")]))
    assert page.count("<h2>") == 2
    anchors = re.findall(r'<h3 id="([^"]+)"', page)
    assert len(set(anchors)) == len(anchors) == 2


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_a_missing_library_is_said_in_three_lines(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(picture.NotInstalledError) as caught:
        report.render(everything())
    what, _, action = str(caught.value).splitlines()
    assert f"{missing} is not installed" in what
    assert "pip install matplotlib jinja2" in action


def test_charts_are_elements_in_the_pages_own_colours(summary: Summary) -> None:
    made = charts.over_time(summary, "buffers")
    text = picture.svg(made)
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    words = "".join(root.itertext())
    assert "base + peak live" in words
    assert "cudaMallocAsync" not in words  # it was not measured
    assert "currentColor" in text
    assert picture.INK not in text
    colours = set(re.findall(r"fill: (#\w{6})", text))
    assert not colours & {"#000000", "#ffffff"}
    assert picture.colour("paged") in text
    assert text == picture.svg(charts.over_time(summary, "buffers"))


def test_there_is_no_chart_of_what_was_not_measured() -> None:
    bare = summarise(results(row("paged", card=None)))[0]
    assert charts.over_time(bare, "buffers") is None
    assert charts.step_intervals(bare) is None
    assert charts.capacity_bars(bare) is None
    assert charts.driver_bars(bare) is None
    assert readme_pictures.pictures(bare) == []


def test_the_line_of_memory_over_time_is_that_of_the_highest_peak() -> None:
    low = row("paged", card=card(1000, [[0.0, 1 * MIB]]))
    high = row("paged", round=1, card=card(1001, [[0.0, 2 * MIB]]))
    together = row("paged", group=1, card=card(9000, [[0.0, 3 * MIB]]))
    found = charts.timelines(summarise(results(high, low, together))[0], "buffers")
    assert found == {"paged": [[0.0, 2 * MIB]]}
    many = [row(f"native-split{mb}") for mb in (32, 64, 128, 512)]
    many += [row(name) for name in ("rmm-pool", "rmm-arena", "rmm-async", "paged", "native")]
    drawn = charts.timelines(summarise(results(*many))[0], "buffers")
    assert list(drawn)[:2] == ["native", "paged"]
    assert len(drawn) == charts.MOST_LINES


def test_pictures_carry_a_digest_of_what_they_show(tmp_path: Path, summary: Summary) -> None:
    written = picture.write_all(everything(), tmp_path)
    assert [path.name for path in written] == ["card-memory.png", "over-time.png", "step-times.png"]
    for path, made in zip(written, readme_pictures.pictures(summary), strict=True):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert readme_pictures.is_current(path, made)
    changed = everything()
    changed.rows[0]["card"]["peak_bytes"] += 1
    changed.rows[0]["card"]["timeline"][0][1] += 1
    stale = [
        made.name
        for made in readme_pictures.pictures(summarise(changed)[0])
        if not readme_pictures.is_current(tmp_path / f"{made.name}.png", made)
    ]
    assert stale == ["card-memory", "over-time"]


def test_the_readmes_table_marks_what_ours_loses(
    monkeypatch: pytest.MonkeyPatch, summary: Summary
) -> None:
    monkeypatch.setattr(readme_table, "why", lambda: {("buffers", "paged", "time"): "Because."})
    text = readme_table.render(summary, "SOURCE")
    memory = "| buffers | 900 | 1,100 | 1,080 | – | **1,000** | 100.0 % |"
    assert f"{memory} 1.200 (1.200–1.200) ✗ | 1, 1° |\n" in text
    assert "\n- buffers, step time 1.200 (1.200–1.200) of the fastest: Because.\n" in text
    assert "in 1 of 1 workloads" in text
    assert "reaches 1.00 in 0 of 1" in text
    assert text.endswith("SOURCE\n")
    over = summarise(results(row("native"), row("paged", card=card(1200))))[0]
    assert "| **1,100** | – | – | 1,200 ✗ |" in readme_table.render(over, "")
    broken = summarise(results(row("native"), failed("paged", "CUDA out of memory")))[0]
    assert "| – | – | out of memory ✗ |" in readme_table.render(broken, "")


def test_capacity_is_told_with_what_ours_gains(summary: Summary) -> None:
    text = capacity_table.render(summary, "SOURCE")
    assert "| buffers | 24 GiB | buffers | 100 | – | – | **150** | +50.0 % | – |" in text
    assert "| buffers | – | – | – | runs" in text
    bare = summarise(results(row("native")))[0]
    assert capacity_table.render(bare, "SOURCE") == ""
    rows = [study("native", 100, complete=False), study("paged", 99), study("expandable", None)]
    rows += [study("cudaMallocAsync", 5, error="boom")]
    lost = capacity_table.render(summarise(results(*rows))[0], "")
    assert "| **≥ 100** | none fits | 5, then an error | 99 | -1.0 % ✗ | – |" in lost
    rows = [study("native", 100), study("paged", 99, complete=False)]
    cut = capacity_table.render(summarise(results(*rows))[0], "")
    assert "| **100** | – | – | ≥ 99 | – | – |" in cut


def test_a_terminal_shows_capacity_alone_and_what_was_cut_short() -> None:
    rows = [study("native", 100), study("paged", 99, complete=False)]
    text = outputs.text(results(*rows))
    assert "to the fastest native" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "buffers paged 24 GiB ≥ 99 buffers" in lines
    assert "buffers native 24 GiB 100 buffers" in lines


def test_claims_are_held_against_what_was_measured() -> None:
    rows = [row("native", workload="text_varlen", card=card(2100))]
    rows += [row("native-split64", workload="text_varlen_emptied", run_s=0.05)]
    rows += [row("native", workload="text_varlen_emptied", card=card(1600))]
    rows += [row("paged", workload="text_varlen", card=card(1012))]
    rows += [row("native", workload="segmentation_3d", card=card(2000))]
    faster = [ms / 1.25 for ms in STEADY]
    rows += [row("paged", faster, workload="segmentation_3d", card=card(1200))]
    text = claims.render(summarise(results(*rows))[0], "SOURCE")
    first, second = (line for line in text.splitlines() if line.startswith(("| var", "| 3D")))
    assert "| 90.0 % used, " in first  # 900 live of what is held: 2100 - base, which is 1100
    assert first.endswith("nothing emptied |")
    assert second.endswith(
        "| 2,000 MiB on the card for 900 in use | -40 % memory, +25.0 % throughput |"
    )
    assert "BERT" not in text  # not measured
    assert claims.render(summarise(results(row("native")))[0], "") == ""


def test_two_workloads_speed_is_of_one_session() -> None:
    dates = ("2026-01-03", "2026-01-01", "2026-01-02")
    kept = {"workload": "text_varlen", "card": card(2100)}
    emptied = {"workload": "text_varlen_emptied", "card": card(1600)}
    rows = [row("paged", **kept), row("native-split64", run_s=1.0, session=2, **emptied)]

    def speed(native: str, run_s: float, at: int, beside: dict[str, Any]) -> str:
        rows.append(row(native, run_s=run_s, session=at, **beside))
        sessions = [session(date) for date in dates]
        text = claims.render(summarise(results(*rows, sessions=sessions))[0], "")
        return next((line for line in text.splitlines() if line.startswith("| var")), "")

    speed("native", 8.0, 1, kept)
    assert "a speed not measured in one session" in speed("native", 10.0, 2, emptied)
    speed("native", 9.0, 0, kept)
    assert "75 % of the speed" in speed("native", 12.0, 0, emptied)
    speed("native", 1.0, 2, kept)  # a session before that one
    assert "75 % of the speed" in speed("native", 5.0, 1, emptied)


def test_a_batch_of_twice_the_size_is_compared_by_its_steps() -> None:
    rows = [row("native", workload="bert_batch16", run_s=3.9)]  # 39 steps of 100 ms
    rows += [row("native", workload="bert_batch32", run_s=2.85)]  # 19 of 150
    text = claims.render(summarise(results(*rows))[0], "")
    assert "| -25 % time (100 and 150 ms a step); " in text


def test_cells_cannot_break_a_table() -> None:
    assert plain("a|b\n<c> `d`") == "a\\|b &lt;c> 'd'"
    with pytest.raises(AssertionError):
        markdown(["a", "b"], [["1"]])
