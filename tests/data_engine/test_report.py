"""The report: its numbers, its sample, its escaping, and its gallery in a real browser."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from report_run import EVIL, build, scene

from editfoundry.core.errors import UsageError
from editfoundry.data_engine.audit import funnel
from editfoundry.data_engine.report import binned, write_report
from editfoundry.data_engine.report_gallery import Sampler
from editfoundry.data_engine.report_ranks import worst_ranks
from editfoundry.data_engine.report_summary import Summary
from editfoundry.data_engine.rundir import RunDir

SINGLES, CONVERSATIONS, TURNS = 16, 2, 5
FAILED = 2  # of the 18 samples, numbers 8 (a remove) and 17 (a visual)
ACCEPTED = SINGLES + CONVERSATIONS - FAILED


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("reports") / "run", [scene(number) for number in range(5)])


@pytest.fixture(scope="module")
def page_file(run: Path) -> Path:
    return write_report(run)


@pytest.fixture(scope="module")
def html(page_file: Path) -> str:
    return page_file.read_text(encoding="utf-8")


def row(**changes: Any) -> dict[str, Any]:
    base = {"type": "add", "conversation_id": "a", "conversation_kind": "single", "turn": 1, "origin": "donor",
            "licence": "CC0-1.0", "photograph_sha256": "p", "width": 64, "height": 48, "mask_area": 0.25,
            "instruction": "Add a duck.", "outside_max": 0.0}
    return {**base, **changes}


def test_the_fixture_is_a_run_whose_accounts_add_up(run: Path) -> None:
    assert funnel(RunDir.existing(run)).problems == ()


def test_the_report_is_where_it_says_and_the_same_every_time(run: Path, page_file: Path) -> None:
    assert page_file == run / "report" / "index.html"
    first = page_file.read_bytes()
    assert write_report(run).read_bytes() == first
    assert list(page_file.parent.iterdir()) == [page_file]


def test_headline_numbers(html: str) -> None:
    numbers = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)<span", html))
    assert numbers == {"Single edits": "14", "Conversations": "2", "Photographs": "4", "On real objects": "4",
                       "Distinct words": numbers["Distinct words"], "Outside the mask": "0", "Unsure labels": "4"}


def test_the_funnel_table_has_every_stage_and_reason(html: str) -> None:
    table = html.split('id="survival"')[1].split("</table>")[0]
    rows = [re.findall(r">([^<>]+)</t[hd]>", line) for line in table.split("<tr")]
    assert ["ingest", "6", "5", "1", "5"] in rows
    assert ["verify", "18", "16", "2", "16"] in rows
    text = " ".join(re.sub(r"<[^>]+>", " ", table).split())
    assert "truncated image 1" in text and "visible seam 2" in text and "regions: unsure label 4" in text


def test_every_accepted_sample_has_a_card_with_its_facts(html: str) -> None:
    assert html.count("<article") == ACCEPTED
    assert html.count('data-kind="version_backtracking"') == 1
    assert "from turn 1’s result" in html and "from the start" in html
    assert "Everything you add must be &lt;em&gt;purple&lt;/em&gt;." in html
    assert "https://example.org/0?a=1&amp;b=&lt;2&gt;" in html


def test_rejects_show_reason_detail_and_picture(html: str) -> None:
    groups = html.split('<details class="card reject-group"')[1:]
    seam = next(group for group in groups if "<b>visible seam</b>" in group)
    assert seam.count('class="compare"') == 2 and "the rim is 2.9 times its surroundings" in seam
    unsure = next(group for group in groups if "<b>unsure label</b>" in group)
    assert unsure.count("<img") == 4 and "&lt;i&gt;pizza&lt;/i&gt;" in unsure
    broken = next(group for group in groups if "<b>truncated image</b>" in group)
    assert "No pixels were kept" in broken and "broken.jpg: ends early" in broken


def test_hostile_strings_are_escaped_everywhere(html: str) -> None:
    assert "<script>alert" not in html and "<b>run</b>" not in html
    assert EVIL in map(unescape, re.findall(r'<p class="instruction">([^<]*)</p>', html))


def test_a_run_without_a_dataset_is_the_callers_mistake(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run"):
        write_report(tmp_path)
    unfinished = shutil.copytree(run, tmp_path / "unfinished")
    shutil.rmtree(unfinished / "dataset")
    with pytest.raises(UsageError, match=r"no dataset/index\.parquet yet"):
        write_report(unfinished)


def test_summary_counts_conversations_once_and_words_by_case() -> None:
    summary = Summary()
    summary.add(row(instruction="Add a duck, a Duck's egg."))
    for turn in (1, 2):
        summary.add(row(conversation_id="b", conversation_kind="content_memory", turn=turn, mask_area=1.0))
    assert summary.pairs == {"add": 1} and summary.turns == 2 and summary.conversations == {"content_memory": 1}
    assert summary.tokens == {"add", "a", "duck", "duck's", "egg"} and summary.words == 6 + 3 + 3
    assert summary.areas[5] == 1 and summary.areas[19] == 2


def test_a_small_dataset_is_shown_whole() -> None:
    sampler = Sampler(limit=400)
    for number in range(400):
        sampler.add(row(conversation_id=f"s{number}"))
    assert len(sampler.chosen()) == sampler.offered == 400


def test_a_large_dataset_is_sampled_by_stratum_whatever_its_order() -> None:
    rows = [row(conversation_id=f"a{n}") for n in range(3000)]
    rows += [row(conversation_id=f"s{n}", type="style", origin="photograph") for n in range(1000)]
    rows += [row(conversation_id=f"c{n}", conversation_kind="content_memory", turn=t) for n in range(5) for t in (1, 2)]
    samplers = Sampler(limit=100), Sampler(limit=100)
    for offered in rows:
        samplers[0].add(offered)
    for offered in reversed(rows):
        samplers[1].add(offered)
    chosen = samplers[0].chosen()
    assert chosen == samplers[1].chosen() and samplers[0].offered == 4005
    assert Counter(name[0] for name in chosen) == {"a": 74, "s": 24, "c": 4}


def test_ranks_find_the_worst_of_each_gate_in_its_own_direction() -> None:
    ranks = worst_ranks({
        "seam": [{"seam": 2.0, "texture": 1.0, "outside_max": 0.0}],
        "flat": [{"seam": 1.0, "texture": 0.4, "outside_max": 0.0}],
        "fine": [{"seam": 0.5, "texture": 1.1, "outside_max": 0.0, "note": "ok", "flag": True}],
        "none": [{}],
    })
    assert ranks["seam"] == (0, "seam 2") and ranks["flat"] == (0, "texture 0.4")
    assert ranks["fine"] == (500, "texture 1.1") and ranks["none"] == (1000, "")


def test_bins_cover_every_value() -> None:
    assert binned({3: 1, 5: 2}, 1) == ([2.5, 3.5, 4.5, 5.5], [1, 0, 2])
    edges, totals = binned({480: 1, 512: 2, 1200: 3}, 16)
    assert (edges[0], edges[-1] > 1200, sum(totals), len(totals) <= 12) == (480, True, 6, True)
    assert binned({}, 16) == ([0, 16], [0])


@pytest.fixture
def opened(browser: Any, page_file: Path, request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    """The report in a browser that may load nothing but this file: what was asked for, and every complaint."""
    width = getattr(request, "param", 1280)
    context = browser.new_context(viewport={"width": width, "height": 844})
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []

    def decide(route: Any) -> None:
        asked.append(route.request.url)
        if route.request.url == page_file.as_uri():
            route.continue_()
        else:
            route.abort()

    context.route("**/*", decide)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.goto(page_file.as_uri())
    yield SimpleNamespace(page=page, asked=asked, complaints=complaints)
    context.close()


def shown(page: Any) -> int:
    """Cards on screen, which must be what the page says."""
    count = page.locator("article").filter(visible=True).count()
    assert page.locator("#shown b").inner_text() == str(count)
    return int(count)


def read_to_the_end(page: Any) -> None:
    """Scroll as a reader would, until every picture has been filled in; then wait for all of them to decode."""
    for details in page.locator(".reject-group").all():
        details.evaluate("element => { element.open = true; }")
    for image in page.locator("img:not(.compare-mask)").all():
        image.scroll_into_view_if_needed()
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect(page.locator("img[data-image]:not(.compare-mask)")).to_have_count(0)
    broken = page.evaluate("""async () => {
      const images = [...document.querySelectorAll("img:not(.compare-mask)")];
      const decoded = await Promise.allSettled(images.map((image) => image.decode()));
      return images.filter((image, i) => decoded[i].status === "rejected" || image.naturalWidth < 2).length;
    }""")
    assert broken == 0


@pytest.mark.browser
@pytest.mark.slow
def test_nothing_is_loaded_nothing_complains_and_hostile_text_stays_text(opened: SimpleNamespace) -> None:
    page = opened.page
    read_to_the_end(page)
    assert [url for url in opened.asked if not url.startswith("data:")] == [opened.asked[0]]
    assert opened.complaints == []
    assert page.locator("article .instruction").filter(has_text="<script>alert(1)</script>").text_content() == EVIL
    assert page.locator("h1").inner_text() == "Test <b>run</b>"


@pytest.mark.browser
@pytest.mark.slow
def test_filters_search_and_their_combination(opened: SimpleNamespace) -> None:
    page = opened.page
    assert shown(page) == ACCEPTED
    page.select_option("[name=type]", "style")
    assert shown(page) == 4
    page.select_option("[name=split]", "val")
    assert shown(page) == 1
    page.select_option("[name=split]", "")
    page.select_option("[name=type]", "add")
    assert shown(page) == 4 + CONVERSATIONS
    page.select_option("[name=kind]", "single")
    assert shown(page) == 4
    page.select_option("[name=kind]", "version_backtracking")
    assert shown(page) == 1
    page.select_option("[name=kind]", "")
    page.select_option("[name=type]", "")
    page.select_option("[name=origin]", "photograph")
    assert shown(page) == 4
    page.select_option("[name=origin]", "")
    page.fill("[name=text]", "UNDO first")
    assert shown(page) == 1
    page.fill("[name=text]", "<script>alert")
    assert shown(page) == 1
    page.fill("[name=text]", "no such words")
    assert shown(page) == 0
    assert page.get_by_text("Nothing matches these filters.").is_visible()


@pytest.mark.browser
@pytest.mark.slow
def test_worst_gate_first_reorders_the_gallery(opened: SimpleNamespace) -> None:
    page = opened.page
    before = page.locator("article").evaluate_all("cards => cards.map(card => card.dataset.order)")
    page.select_option("[name=order]", "worst")
    worst = page.locator("article").evaluate_all("cards => cards.map(card => Number(card.dataset.worst))")
    assert worst == sorted(worst) and worst[0] == 0 and worst[-1] > 0
    assert page.locator("article .weakest").first.is_visible()
    page.select_option("[name=order]", "order")
    assert page.locator("article").evaluate_all("cards => cards.map(card => card.dataset.order)") == before


@pytest.mark.browser
@pytest.mark.slow
def test_the_slider_moves_by_pointer_and_by_key(opened: SimpleNamespace) -> None:
    stage = opened.page.locator("article .compare-stage").first
    after = stage.locator(".compare-after")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    assert after.evaluate("e => getComputedStyle(e).clipPath") == "inset(0px 0px 0px 50%)"
    opened.page.mouse.click(box["x"] + box["width"] * 0.25, box["y"] + 30)
    assert after.evaluate("e => getComputedStyle(e).clipPath") == "inset(0px 0px 0px 25%)"
    opened.page.keyboard.press("ArrowLeft")
    assert after.evaluate("e => getComputedStyle(e).clipPath") == "inset(0px 0px 0px 24%)"


@pytest.mark.browser
@pytest.mark.slow
def test_masks_show_one_by_one_and_all_at_once(opened: SimpleNamespace) -> None:
    page = opened.page
    masks = page.locator("article .compare-mask")
    total = masks.count()
    assert total == 10 + TURNS and masks.filter(visible=True).count() == 0
    page.locator("article .compare-toggle").first.click()
    assert masks.filter(visible=True).count() == 1
    page.get_by_role("button", name="Masks on all").click()
    assert masks.filter(visible=True).count() == total
    page.get_by_role("button", name="Masks on all").click()
    assert masks.filter(visible=True).count() == 0


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("opened", [390, 320], indirect=True)
def test_a_phone_scrolls_one_way_only(opened: SimpleNamespace) -> None:
    page = opened.page
    page.get_by_role("button", name="Details on all").click()
    page.get_by_role("button", name="Large pictures").click()
    read_to_the_end(page)
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    too_wide = page.evaluate("""width => [...document.body.querySelectorAll("main *, header *")]
      .filter(e => !e.closest("svg, .table-scroll") && e.checkVisibility())
      .filter(e => e.getBoundingClientRect().right > width + 1)
      .map(e => e.className)""", width)
    assert too_wide == []
