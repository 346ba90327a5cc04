"""Pages: escaping, the content security policy, the image store, and the before/after component in a real browser."""

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from editfoundry.core import charts
from editfoundry.core.images import encode_jpeg, encode_mask_png
from editfoundry.core.masks import Mask
from editfoundry.core.pages import render
from editfoundry.core.pages.thumbnails import Thumbnails

EVIL = "</script><script>document.title='owned'</script><!-- <img src=x onerror=\"document.title='owned'\"> & 'x'"


def flat(colour: tuple[int, int, int], width: int = 64, height: int = 48) -> bytes:
    return encode_jpeg(np.full((height, width, 3), colour, np.uint8))


def half_mask(width: int = 64, height: int = 48) -> bytes:
    inside = np.zeros((height, width), np.bool_)
    inside[:, width // 2:] = True
    return encode_mask_png(Mask(inside))


def test_values_are_escaped_in_text_and_attributes() -> None:
    page = render("base.html.jinja", title=EVIL)
    assert "<script>document" not in page and "<img src=x" not in page
    assert "&lt;/script&gt;&lt;script&gt;" in page


def test_embedded_json_cannot_leave_its_element_and_keeps_its_value() -> None:
    page = render("base.html.jinja", title="t", images={"a": EVIL})
    block = re.search(r'<script type="application/json" id="images">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    assert "<" not in block[1]
    assert json.loads(block[1]) == {"a": EVIL}


def test_nan_in_embedded_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        render("base.html.jinja", title="t", images={"a": float("nan")})


def test_the_policy_lists_exactly_the_scripts_of_the_page() -> None:
    page = render("base.html.jinja", title="t")
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0].replace("&#39;", "'")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert len(scripts) == 1
    assert f"script-src '{'sha256-' + digests[0]}';" in policy
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_an_unknown_template_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"'nothing\.html\.jinja'.*editfoundry\.core\.pages"):
        render("nothing.html.jinja")


def test_rendering_twice_gives_the_same_bytes() -> None:
    images = {"b": "data:,2", "a": "data:,1"}
    first = render("base.html.jinja", title="t", images=images)
    assert first == render("base.html.jinja", title="t", images=dict(reversed(images.items())))


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_pictures_shrink_to_the_long_side_and_are_read_once() -> None:
    reads = []

    def read() -> bytes:
        reads.append(1)
        return flat((200, 40, 40), 900, 300)

    store = Thumbnails(long_side=300)
    assert store.picture("a", read) == store.picture("a", read) == "a"
    image = decoded(store.images["a"])
    assert len(reads) == 1
    assert image.size == (300, 100)
    assert np.abs(np.asarray(image, np.int16)[50, 150] - (200, 40, 40)).max() <= 3


def test_a_small_picture_keeps_its_size() -> None:
    store = Thumbnails(long_side=300)
    store.picture("a", lambda: flat((0, 0, 0)))
    assert decoded(store.images["a"]).size == (64, 48)


def test_an_overlay_is_clear_outside_tinted_inside_and_firm_at_the_edge() -> None:
    store = Thumbnails()
    store.overlay("m", half_mask)
    alpha = np.asarray(decoded(store.images["m"]).convert("RGBA"))[..., 3]
    assert (alpha[:, :32] == 0).all()
    assert (alpha[:, 32:34] == 255).all()
    assert (alpha[:, 34:] == 96).all()


def test_charts_escape_labels_and_carry_the_numbers() -> None:
    drawing = charts.bars({"<script>": 1234, "b": 5}, label='a "<b>"')
    assert "<script>" not in drawing and "&lt;script&gt;" in drawing
    assert "1,234" in drawing
    assert 'aria-label="a &#34;&lt;b&gt;&#34;"' in drawing


def test_charts_have_no_ids_that_could_collide_on_a_page() -> None:
    drawings = [charts.bars({"a": 1}, label="x"),
                charts.histogram([0, 1, 2], [3, 4], label="x", title="y"),
                charts.stacked([("a", {"kept": 1, "lost": 2})], label="x")]
    assert not any(" id=" in drawing for drawing in drawings)


def test_a_histogram_wants_one_more_edge_than_counts() -> None:
    with pytest.raises(ValueError, match="2 counts needs 3 edges, got 2"):
        charts.histogram([0, 1], [3, 4], label="x", title="y")


PAGE = """{% extends "base.html.jinja" %}
{% from "_compare.html.jinja" import compare %}
{% block content %}<div style="width: 400px">{{ compare("before", "after", 64, 48, title, "mask") }}</div>{% endblock %}
"""


@pytest.fixture
def opened(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The component on a page of its own (its template in a package on the path), the requests and the complaints."""
    package = tmp_path / "pagetest"
    (package / "templates").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "templates" / "one.html.jinja").write_text(PAGE)
    monkeypatch.syspath_prepend(tmp_path)
    store = Thumbnails()
    store.picture("before", lambda: flat((220, 30, 30)))
    store.picture("after", lambda: flat((30, 30, 220)))
    store.overlay("mask", half_mask)
    file = tmp_path / "page.html"
    file.write_text(render("pagetest:one.html.jinja", title=EVIL, images=store.images), encoding="utf-8")

    context = browser.new_context(viewport={"width": 600, "height": 600})
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    settle(page)
    yield SimpleNamespace(page=page, requests=requests, complaints=complaints)
    context.close()


def settle(page: Any) -> None:
    """Wait until every visible image is filled in and decoded. (`wait_for_function` would need eval, which is off.)"""
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect(page.locator("img[data-image]").filter(visible=True)).to_have_count(0)
    page.evaluate("Promise.all([...document.images].filter(i => i.checkVisibility()).map(i => i.decode()))")


def colour_at(page: Any, share: float) -> tuple[int, int, int]:
    """The colour on screen at that share of the component's width, off the handle and the vertical centre."""
    box = page.locator(".compare-stage").bounding_box()
    shot = Image.open(io.BytesIO(page.locator(".compare-stage").screenshot())).convert("RGB")
    pixel = shot.getpixel((int(box["width"] * share), 12))
    assert isinstance(pixel, tuple)
    return pixel[:3]


def is_red(colour: tuple[int, int, int]) -> bool:
    return colour[0] > 150 and colour[2] < 100


@pytest.mark.browser
@pytest.mark.slow
def test_dragging_uncovers_the_picture_under_the_pointer(opened: SimpleNamespace) -> None:
    page = opened.page
    assert is_red(colour_at(page, 0.4)) and not is_red(colour_at(page, 0.6))
    box = page.locator(".compare-stage").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 20, steps=4)
    page.mouse.up()
    assert page.locator(".compare-after").evaluate("e => getComputedStyle(e).clipPath") == "inset(0px 0px 0px 20%)"
    assert is_red(colour_at(page, 0.1)) and not is_red(colour_at(page, 0.4))


@pytest.mark.browser
@pytest.mark.slow
def test_keys_and_buttons_move_the_divider(opened: SimpleNamespace) -> None:
    page = opened.page
    slider = page.get_by_role("slider")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "51"
    page.keyboard.press("End")
    assert is_red(colour_at(page, 0.95))
    page.get_by_role("button", name="After").click()
    assert slider.input_value() == "0"
    assert not is_red(colour_at(page, 0.05))


@pytest.mark.browser
@pytest.mark.slow
def test_the_mask_shows_on_request(opened: SimpleNamespace) -> None:
    page = opened.page
    page.get_by_role("button", name="After").click()
    plain = colour_at(page, 0.9)
    page.get_by_role("button", name="Mask").click()
    settle(page)
    assert page.get_by_role("button", name="Mask").get_attribute("aria-pressed") == "true"
    assert colour_at(page, 0.9)[0] > plain[0] + 50
    assert not is_red(colour_at(page, 0.2))


@pytest.mark.browser
@pytest.mark.slow
def test_markup_in_values_stays_text_and_nothing_is_requested(opened: SimpleNamespace) -> None:
    page = opened.page
    assert page.locator("h1").inner_text() == EVIL
    assert page.title() == " ".join(EVIL.split())
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert opened.complaints == []


@pytest.mark.browser
@pytest.mark.slow
def test_the_policy_stops_injected_scripts(opened: SimpleNamespace) -> None:
    page = opened.page
    page.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.injected = true";
      document.body.append(script);
      document.body.insertAdjacentHTML("beforeend", "<img src='data:,' onerror='window.injected = true'>");
    }""")
    page.wait_for_timeout(200)
    assert page.evaluate("window.injected") is None
