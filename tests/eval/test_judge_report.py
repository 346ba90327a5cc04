"""The page of a judge's scores: its numbers, its order, escaping, and the page in a real browser."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judged_pairs import (
    EVIL,
    PixelJudge,
    change,
    flat,
    meta,
    read_lines,
    unseen,
    write_choices,
    write_lines,
    write_pairs,
)

from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.eval import judge_report
from editfoundry.eval.judge_report import write_report
from editfoundry.eval.judging import PREFER, SCORE, judge_pairs

LEVELS = (200, 100, 0, 255, 50)


def judged(pairs: Path, **facts: Any) -> Path:
    """The scores of a pairs file, beside it."""
    out = pairs.with_name("scores.jsonl")
    judge_pairs(SCORE, PixelJudge(facts=facts), pairs, out, unseen)
    return out


def text_of(page: str) -> str:
    """The words of the page, without markup."""
    body = re.sub(r"<(script|style|svg).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_the_page_tells_the_numbers_and_who_made_them(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path, LEVELS)
    change(pairs, 4, source="none.jpg")
    out = judged(pairs)
    path = write_report(out)
    assert path == tmp_path / "scores.jsonl.html"
    text = text_of(path.read_text())
    assert (
        "5 pairs of pairs.jsonl: 4 with scores. Judge pixels, rubric edit version 1, head expected (chained), " in text
    )
    assert "order compat; reason: none is written." in text
    mean = sum(1 + 4 * level / 255 for level in LEVELS[:4]) / 4
    assert f"Mean overall {mean:.2f} on a scale from 1 to 5" in text
    assert "With scores 4 of 5" in text and "Without scores 1" in text
    assert "add 3 2 2.57 following 2.57, naturalness 2.57" in text
    assert "style 2 2 3.78 following 3.78, naturalness 3.78" in text
    assert "unusable: missing picture none.jpg: no such file" in text and "missing picture 1" in text
    assert "judge.model pixels" in text and "answered as pixels-2" in text
    assert "miniature" not in text and "untuned" not in text and "not finished" not in text
    assert "25.0% of the probability went elsewhere" in text


def test_what_has_no_score_comes_first_and_then_the_lowest(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path, LEVELS)
    change(pairs, 3, instruction="refuse")
    page = write_report(judged(pairs)).read_text()
    assert re.findall(r"<code>(.*?)</code>", page) == ["pair 3", "pair 2", "pair 4", "pair 1", "pair 0"]
    assert page.count('class="compare"') == 5
    bands = re.findall(r'data-band="(.*?)"', page)
    assert bands == ["", "1 to 2", "1 to 2", "2 to 3", "4 to 5"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"trained": False, "miniature": False}, "An untuned base"),
        ({"trained": True, "miniature": True}, "A random-weight miniature"),
        ({"trained": True, "miniature": False}, ""),
    ],
)
def test_a_judge_that_is_not_to_be_believed_is_called_so(tmp_path: Path, facts: dict[str, bool], said: str) -> None:
    text = text_of(write_report(judged(write_pairs(tmp_path, [9]), **facts)).read_text())
    assert [notice for notice in ("An untuned base", "A random-weight miniature") if notice in text] == [said] * bool(
        said
    )


def test_probability_that_went_elsewhere_prompts_and_unfinished_work_are_said(tmp_path: Path) -> None:
    out = judged(write_pairs(tmp_path, LEVELS))
    write_lines(out, [{**row, "uncovered": 0.995} for row in read_lines(out)[:3]])
    said = meta(out)
    said["finished"] = False
    said["judge"]["rubric"]["pinned"] = False
    out.with_name("scores.jsonl.meta.json").write_text(json.dumps(said))
    text = text_of(write_report(out).read_text())
    assert "On average 99.5% of the probability" in text
    assert "not the released revision" in text
    assert "The work is not finished" in text and "3 of 5 pairs" in text


def test_the_same_scores_give_the_same_page(tmp_path: Path) -> None:
    out = judged(write_pairs(tmp_path, LEVELS))
    assert write_report(out).read_bytes() == write_report(out).read_bytes()


def test_pictures_are_shown_only_if_they_are_those_that_were_judged(tmp_path: Path) -> None:
    out = judged(write_pairs(tmp_path, LEVELS))
    (tmp_path / "pictures" / "result-1.jpg").write_bytes(flat(7))
    (tmp_path / "pictures" / "result-2.jpg").unlink()
    (tmp_path / "pictures" / "result-3.jpg").write_bytes(flat(255, 9, 90))
    change(tmp_path / "pairs.jsonl", 4, id="another")
    page = write_report(out).read_text()
    assert page.count('class="compare"') == 1
    assert page.count("The pair has changed since it was judged") == 2
    assert "result-2.jpg: no such file" in page and "No pictures to show" in page


def test_results_of_another_shape_are_told(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path, LEVELS)
    (tmp_path / "pictures" / "result-1.jpg").write_bytes(flat(255, 9, 90))
    assert text_of(write_report(judged(pairs)).read_text()).count("after: of another shape than before") == 1


def test_pairs_that_were_moved_are_named(tmp_path: Path) -> None:
    out = judged(write_pairs(tmp_path / "first", LEVELS))
    (tmp_path / "first").rename(tmp_path / "second")
    out = tmp_path / "second" / out.name
    with pytest.raises(UsageError, match="the pairs' file is gone; name it with --pairs"):
        write_report(out)
    assert write_report(out, tmp_path / "second" / "pairs.jsonl").read_text().count('class="compare"') == 5


def test_a_page_of_many_shows_the_lowest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_report, "MOST_SCORED", 3)
    monkeypatch.setattr(judge_report, "MOST_UNSCORED", 1)
    pairs = write_pairs(tmp_path, LEVELS)
    with pairs.open("a") as file:
        file.write("{\n[\n")
    page = write_report(judged(pairs)).read_text()
    assert re.findall(r"<code>(.*?)</code>", page) == ["line 6", "pair 2", "pair 4", "pair 1"]
    assert "Of the pairs with scores the 3 lowest are shown. Of those without, the first 1." in text_of(page)


def test_preferences_and_other_files_are_refused(tmp_path: Path) -> None:
    judge_pairs(PREFER, PixelJudge(), write_choices(tmp_path), tmp_path / "choices.jsonl", unseen)
    with pytest.raises(UsageError, match="holds preferences"):
        write_report(tmp_path / "choices.jsonl")
    with pytest.raises(UsageError, match="no file of verdicts"):
        write_report(tmp_path / "choices" / "pairs.jsonl")
    out = judged(write_pairs(tmp_path, LEVELS))
    for row in ({"id": "a", "pair": "b"}, {"id": "a", "pair": "b", "overall": "x", "scores": 1, "above_first": []}):
        write_lines(out, [row])
        with pytest.raises(EditFoundryError, match="damaged"):
            write_report(out)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The page of hostile texts on a phone, the requests it made and the complaints."""
    pairs = write_pairs(tmp_path / "a <b>\u00e9", LEVELS)
    change(pairs, 0, id=EVIL, instruction=EVIL)
    change(pairs, 1, type=EVIL, source="<img src=x onerror=alert(1)>")
    out = judged(pairs, model=EVIL)
    out = out.rename(out.with_name("<script>alert(1)<&script>.jsonl"))
    pairs.with_name("scores.jsonl.meta.json").rename(out.with_name(out.name + ".meta.json"))
    rows = read_lines(out)
    write_lines(out, [{**row, "reason": EVIL, "reply": EVIL} if "scores" in row else row for row in rows])
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(write_report(out).as_uri())
    yield SimpleNamespace(page=page, requests=requests, complaints=complaints)
    context.close()


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_in_a_browser(opened: SimpleNamespace) -> None:
    page = opened.page
    assert page.locator("h1").inner_text() == "<script>alert(1)<&script>.jsonl"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    cards = page.locator(".sample:visible")
    ids = page.locator(".sample:visible code")
    assert [name.partition("<")[0] for name in ids.all_text_contents()] == ["pair 1", "pair 2", "pair 4", "", "pair 3"]
    page.select_option("[name=order]", "highest")
    assert ids.first.text_content() == "pair 3"
    page.select_option("[name=order]", "order")
    assert ids.first.text_content().startswith("</script>")
    page.select_option("[name=type]", "style")
    assert ids.all_text_contents() == ["pair 3"] and page.locator("#shown b").inner_text() == "1"
    page.select_option("[name=type]", "")
    page.select_option("[name=verdict]", "none")
    assert cards.count() == 1 and "missing picture" in cards.first.text_content()
    page.select_option("[name=verdict]", "scored")
    page.select_option("[name=band]", "1 to 2")
    assert ids.all_text_contents() == ["pair 2", "pair 4"]
    page.fill("[name=text]", "nothing like it")
    assert page.locator("#nothing").is_visible() and cards.count() == 0
    page.fill("[name=text]", "4 times")
    assert ids.all_text_contents() == ["pair 4"]
    after = page.locator(".sample:visible .compare-after")
    after.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    assert after.evaluate("e => [e.naturalWidth, e.naturalHeight]") == [48, 32]
    heights = page.locator(".sample:visible .shares i").evaluate_all("all => all.map(e => e.offsetHeight)")[:5]
    assert heights.index(max(heights)) == 1
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert opened.complaints == []
    assert page.title().endswith("judge report")
