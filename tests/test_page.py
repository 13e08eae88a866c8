"""report.html in a real browser: it runs alone, says what the report says, and no name in it is more than text."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import browser
import pytest
from hypothesis import assume, given, settings
from test_render import hostile, small

from harness import cli, page, render, report, verdict
from harness.report import Report
from harness.workspace import REPOSITORY

CPU = REPOSITORY / "docs" / "example" / "cpu_timestep_mlp.json"
PUBLISHED = REPOSITORY / "baselines" / "b200_timestep_mlp.json"
ATTACK = "</script><img src=http://e.invalid/x onerror=alert(1)>\"'|\x1b[2J\n\u202e${1}{{2}}&amp;"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[browser.Page]:
    with browser.browser(tmp_path) as found:
        yield found


def show(opened: browser.Page, folder: Path, shown: Report) -> None:
    path = folder / "report.html"
    path.write_text(page.html(shown), encoding="utf-8")
    opened.open(path)


VOID = {"meta", "br", "img", "input", "link", "hr"}


class Tags(HTMLParser):
    """Every tag and attribute's name of a page; complains where tags don't nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(text: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = Tags()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser.found


@given(name=hostile, reason=hostile, value=hostile)
@settings(max_examples=60)
def test_no_name_or_reason_is_more_than_text(name: str, reason: str, value: str) -> None:
    assume(name not in small().bitmatrix.cells or name == "other")  # type: ignore[union-attr]
    plain = page.html(small())
    text = page.html(small(name=name, reason=reason, value=value))
    assert sorted(tags(text)) == sorted(tags(plain))
    assert all(character.isprintable() or character == "\n" for character in text)


def test_a_page_needs_nothing_but_itself() -> None:
    text = page.html(report.load(CPU))
    assert not re.findall(r"""<[^>]*\s(?:src|href)\s*=\s*["']?[^#"'\s>]|url\(|@import""", text)
    assert "default-src &#39;none&#39;; style-src &#39;sha256-" in text


def test_the_committed_pages_are_what_their_reports_give_and_small() -> None:
    h200 = REPOSITORY / "baselines" / "h200_timestep_mlp.json"
    kernels = CPU.parent / "h200_kernels.json"
    for source, shown in ((CPU, CPU), (kernels, kernels), (h200, CPU.parent / h200.name)):
        loaded = report.load(source)
        again = f"write it again: python -m harness page {source} {shown.with_suffix('.html')}; show for .md"
        assert shown.with_suffix(".html").read_text() == page.html(loaded), again
        assert shown.with_suffix(".md").read_text() == render.markdown(loaded), again
    assert all(path.stat().st_size < 800_000 for path in CPU.parent.iterdir())
    assert all(path.stat().st_size < 200_000 for path in CPU.parent.glob("*.png"))


def test_every_report_there_is_makes_a_page() -> None:
    for path in [*(REPOSITORY / "baselines").glob("*.json"), *(REPOSITORY / "docs" / "example").glob("*.json")]:
        found = report.load(path)
        text = page.html(found)
        for name in found.results:
            assert name in text
        tags(text)


def test_a_report_of_five_hundred_cells_is_a_page_soon(tmp_path: Path) -> None:
    text = page.html(many(500))
    assert len(text) < 24 << 20
    (tmp_path / "many.html").write_text(text)
    assert text.count("<tr") > 1000
    top = text.split('<h2 id="verdicts">')[0].split("<h1>")[1]
    assert re.search(r" and 4[0-9]{2} more", top)
    assert len(top) < 10_000, "the first screen stays an answer"


def test_the_first_screen_says_who_agrees_and_what_each_verdict_means() -> None:
    def first(path: Path) -> str:
        top = page.html(report.load(path)).split('<h2 id="verdicts">')[0]
        return re.sub(r"<[^>]+>", "", re.sub(r"<style>.*</style>", "", top, flags=re.DOTALL))

    cpu, published = first(CPU), first(PUBLISHED)
    assert "2 of 7 cells return the bits of diffusers[plain] in every tensor and case" in cpu
    assert "diffusers[mkl_sse42], diffusers[one_thread] are diffusers[plain], bit for bit: every tensor" in cpu
    assert "0 of 7 cells return the bits of diffusers[plain]" in published
    assert "diffusers[sglang] is most likely diffusers[megatron_triton], bit for bit" in published
    for kind in {kind for one in verdict.every(report.load(CPU)).values() for kind in one.kinds}:
        assert verdict.MEANINGS[kind] in html.unescape(cpu)


def test_a_difference_of_one_cell_alone_is_coloured_by_the_tensors_other_cases() -> None:
    text = page.html(report.load(REPOSITORY / "baselines" / "h200_timestep_mlp.json"))
    row = text.split('data-vs="diffusers[plain]"')[1].split("<code>diffusers[sglang]</code>")[1].split("</tr>")[0]
    # In TF32 at T = 2048, where the other cells return plain's bits.
    assert re.search(r'<td class="l5"><button[^>]*aria-label="out, T = 2048: 5,504,998 ', row)


def test_findings_are_a_table_of_severities_whatever_format_they_are_of() -> None:
    made = small()
    assert made.bitmatrix is not None
    made.bitmatrix.findings = [*made.bitmatrix.findings, "an old one"]
    text = page.html(made)
    assert '<tr><td>error</td><th scope="row"><code>numpy</code></th><td class="words">it is so</td></tr>' in text
    assert '<tr><td>warning</td><th scope="row"><code>stack</code></th><td class="words">an old one</td></tr>' in text


def many(count: int) -> Report:
    """The CPU example with this many cells in place of one of its own."""
    data = json.loads(CPU.read_text())
    details = data["bitmatrix"]
    model, digests = "diffusers[mkl_cbwr]", {}
    for number in range(count):
        name = f"diffusers[mode_{number}]"
        data["results"][name] = data["results"][model]
        details["cells"][name] = details["cells"][model]
        digests[name] = details["digests"][model]
        for part in ("pairs", "measures"):
            if part in details:
                details[part][name] = details[part][model]
    details["digests"] |= digests
    details["classes"] = report.classes(details["digests"]).model_dump()
    return Report.model_validate(data)


@pytest.mark.browser
def test_a_hostile_report_runs_nothing_and_shows_its_words(opened: browser.Page, tmp_path: Path) -> None:
    show(opened, tmp_path, small(name=ATTACK, reason=ATTACK, value=ATTACK, narrowed=(ATTACK,)))
    assert opened.problems == []
    assert opened.run("document.images.length") == 0
    assert opened.run("document.scripts.length") == 2
    assert "onerror=alert(1)" in opened.run("document.querySelector('.verdicts').textContent")
    opened.run("document.querySelector('.map button').click()")
    assert "onerror=alert(1)" in opened.run("document.querySelector('dialog[open] h2').textContent")
    assert opened.problems == []


@pytest.mark.browser
def test_a_foreign_script_in_the_page_is_refused(opened: browser.Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page.html(small()).replace("</main>", "<script>document.title = 'taken'</script></main>"))
    opened.open(path)
    assert opened.run("document.title") != "taken"
    assert any("Content Security Policy" in problem or "Content-Security" in problem for problem in opened.problems)


@pytest.mark.browser
def test_a_pairs_detail_is_one_click_or_key_away(opened: browser.Page, tmp_path: Path) -> None:
    loaded = report.load(CPU)
    show(opened, tmp_path, loaded)
    opened.run("document.querySelector('.map tbody tr td > *').focus()")
    first = opened.run("document.activeElement.getAttribute('aria-label')")
    opened.press("ArrowRight", 39)
    second = opened.run("document.activeElement.getAttribute('aria-label')")
    assert first
    assert second
    assert first != second
    opened.press("ArrowLeft", 37)
    assert opened.run("document.activeElement.getAttribute('aria-label')") == first
    opened.press("Enter", 13, "\r")
    assert opened.run("document.activeElement.textContent") == "Close"
    shown = opened.run("document.querySelector('dialog[open]').innerText")
    assert shown.startswith("diffusers[mkl_cbwr] vs diffusers[plain]: out at T = 1\n")
    pair = loaded.results["diffusers[mkl_cbwr]"].versus["diffusers[plain]"]["1"].out[0]
    assert f"{pair.differ:,} of {pair.numel:,}" in shown
    detail = loaded.bitmatrix.pairs["diffusers[mkl_cbwr]"]["diffusers[plain]"]["1"]["out"]  # type: ignore[union-attr,index]
    assert f"median {detail.ulp_median:,}" in shown
    assert f"0x{detail.bits[0]} (as a floating-point number" in shown
    assert f"{detail.rows_differ:,} of {detail.rows:,}" in shown
    opened.press("Escape", 27)
    assert opened.run("document.querySelector('dialog').open") is False
    opened.run("document.querySelectorAll('.map')[1].querySelector('tr:last-child td:last-child button').click()")
    last = opened.run("document.querySelector('dialog[open] h2').textContent")
    assert last == "golden vs det_linear: d b2 at T = 2048"
    assert opened.problems == []


@pytest.mark.browser
def test_a_screen_reader_finds_names_tables_and_what_a_colour_says(opened: browser.Page, tmp_path: Path) -> None:
    show(opened, tmp_path, report.load(PUBLISHED))
    nodes = opened.call("Accessibility.getFullAXTree")["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert [name for role, name in named if role == "button" and not name] == []
    assert any(role == "button" and re.match(r"out, T = 4: 10,099 / 10,752", name) for role, name in named)
    roles = {role for role, _ in named}
    assert {"main", "navigation", "heading", "table", "rowheader", "columnheader", "region"} <= roles
    assert opened.run("document.documentElement.lang") == "en"


@pytest.mark.browser
def test_a_phone_scrolls_tables_and_never_the_page(opened: browser.Page, tmp_path: Path) -> None:
    opened_at = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    show(opened, tmp_path, report.load(CPU))
    opened.call("Emulation.setDeviceMetricsOverride", **opened_at)
    assert opened.run("document.documentElement.scrollWidth") <= 390
    assert opened.run("getComputedStyle(document.querySelector('.verdicts thead')).display") == "none"
    tallest = opened.run("Math.max(...[...document.querySelectorAll('.map tbody tr')].map(row => row.offsetHeight))")
    assert tallest < 70, "a cell's name is squeezed into a tower of letters"


CONTRAST = """
(() => {
  const channel = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
  return [...document.querySelectorAll('.badge, .map button, .map .spot, p, a, th, .key span')].map(e => {
    const a = light(getComputedStyle(e).color), b = light(back(e));
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.className + ' ' + e.textContent.slice(0, 20)]; })
    .sort((x, y) => x[0] - y[0])[0];
})()
"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_light_and_dark(opened: browser.Page, tmp_path: Path, scheme: str) -> None:
    show(opened, tmp_path, report.load(PUBLISHED))
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    ratio, where = opened.run(CONTRAST)
    assert ratio >= 4.5, where
    dark = opened.run("getComputedStyle(document.documentElement).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


@pytest.mark.browser
def test_a_print_is_light_whole_and_without_what_only_a_screen_can_do(opened: browser.Page, tmp_path: Path) -> None:
    show(opened, tmp_path, report.load(CPU))
    opened.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    assert opened.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert opened.run("getComputedStyle(document.querySelector('.wide')).overflowX") == "visible"
    opened.run("var printed; addEventListener('beforeprint', () => { printed = document.body.innerText; })")
    pdf = opened.call("Page.printToPDF", landscape=True, printBackground=True)["data"]
    assert len(pdf) > 10_000
    led = "Full precision: every probed path keeps 24 significant bits"
    assert led in opened.run("printed"), "what led to a verdict is on paper"
    assert led not in opened.run("document.body.innerText")


@pytest.mark.browser
def test_five_hundred_cells_open_and_answer(opened: browser.Page, tmp_path: Path) -> None:
    show(opened, tmp_path, many(500))
    assert opened.run("document.querySelectorAll('.map tbody tr').length") > 1000
    opened.run("document.querySelector('.map tr:nth-child(400) button').click()")
    assert opened.run("document.querySelector('dialog').open") is True
    assert opened.problems == []


def test_the_page_command_writes_the_file_and_refuses_what_is_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "b200.html"
    assert cli.main(["page", str(PUBLISHED), str(to)]) == 0
    assert to.read_text().startswith("<!DOCTYPE html>")
    half = PUBLISHED.read_text().replace('"op": "timestep_mlp"', '"op": "half a character: \\ud800"')
    (tmp_path / "half.json").write_text(half)
    assert cli.main(["page", str(tmp_path / "half.json"), str(to)]) == 0
    assert "half a character: " in to.read_text()
    (tmp_path / "cut.json").write_text(PUBLISHED.read_text()[:5000])
    assert cli.main(["page", str(tmp_path / "cut.json"), str(tmp_path / "cut.html")]) == 2
    assert "cut short" in capsys.readouterr().err
    assert not (tmp_path / "cut.html").exists()
