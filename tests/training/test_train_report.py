"""The report of a training run: its numbers, bounded size, escaping, damage named, and the page in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from train_run import SAMPLES, course, train_row, validation_row, write_grid, write_run

from editfoundry.core import charts
from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.training.curves import Curve, Curves, below
from editfoundry.training.report import MOST_TIMES, write_report

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> & 'x' \u202e"


def text_of(page: str) -> str:
    """The words of the page, without markup."""
    body = re.sub(r"<(script|style|svg).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_a_short_curve_keeps_every_point() -> None:
    curve = Curve(most=4)
    for step in range(8):
        curve.add(step, step * 10)
    assert curve.width == 1
    assert curve.points == [(step, step * 10) for step in range(8)]


def test_a_long_curve_is_means_of_equally_many_steps() -> None:
    curve = Curve(most=4)
    for step in range(100):
        curve.add(step, step * 10)
    assert curve.width == 16
    assert curve.points == [(start + 7.5, (start + 7.5) * 10) for start in range(0, 96, 16)] + [(97.5, 975.0)]


def test_the_whole_mean_survives_whatever_the_count() -> None:
    for count in range(1, 40):
        curve = Curve(most=2)
        for step in range(count):
            curve.add(step, float(step % 3))
        assert len(curve.points) <= 4
        total = sum(value * weight for weight, _, value in ((c, s, v / c) for c, s, v in curve._sums))
        assert total == pytest.approx(sum(step % 3 for step in range(count)))


def test_curves_of_a_run_have_its_numbers(tmp_path: Path) -> None:
    rows = [
        train_row(1),
        train_row(2, loss=None, grad_norm=None, skipped_step=True, skipped_samples=3),
        validation_row(2),
        train_row(3),
    ]
    curves = Curves(write_run(tmp_path / "run", rows))
    assert curves.train["loss"].points == [(1, rows[0]["loss"]), (3, rows[3]["loss"])]
    assert curves.validation["identity_loss"].points == [(2, 0.5)]
    assert list(below(curves.train, "loss_by_sigma")) == ["0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0"]
    assert below(curves.validation, "loss_by_type")["add"] == [(2, rows[2]["loss"])]
    assert (curves.samples, curves.tokens, curves.skipped_samples, curves.skipped_steps) == (24, 1536, 3, 1)
    assert (curves.seconds, curves.validation_seconds, curves.grids) == (1.5, 3.0, [2])


def test_the_page_tells_the_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", course(40, 10))
    write_grid(run, (10, 20, 30, 40))
    path = write_report(run)
    assert path == run / "report" / "index.html"
    text = text_of(path.read_text())
    assert "Stage joint: 40 of 40 steps, 320 samples." in text
    assert "Validation loss 0.158 68% below 0.5, the input returned" in text
    assert "Error in the edited area 0.0791 68% below 0.25" in text
    assert "Waiting for data 12.5% of a step's time" in text.replace("&#39;", "'")
    assert "Samples trained on 320" in text and "Time in training steps 0 min 20 s" in text
    assert "Validated on 16 samples of the split val, with the averaged weights" in text
    assert "ema.decay 0.99" in text and "optimiser.lr 0.001" in text
    assert "3 samples, at every validation." in text
    assert "the mean of up to" not in text and "miniature" not in text
    for title in (
        "Training loss by noise level",
        "Validation loss by noise level",
        "Gradient norm",
        "Learning rate",
        "Samples a second",
        "Mean weight of the edit mask",
        "Loss by edit type",
    ):
        assert title in text


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", course(4, 2))
    assert write_report(run).read_bytes() == write_report(run).read_bytes()


def test_an_edit_worse_than_its_input_is_said_to_be(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [validation_row(1, loss=0.75, identity_loss=0.5)])
    assert "Validation loss 0.75 50% above 0.5, the input returned" in text_of(write_report(run).read_text())


def test_a_run_with_training_steps_alone_has_no_edits(tmp_path: Path) -> None:
    text = text_of(write_report(write_run(tmp_path / "run", map(train_row, range(1, 4)))).read_text())
    assert "3 of 40 steps" in text and "Training loss" in text
    assert "Validation" not in text and "Edits over time" not in text


@pytest.mark.slow
def test_a_long_run_gives_a_small_page_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", course(10_000, 250), steps=10_000)
    write_grid(run, range(250, 10_001, 250))
    page = write_report(run).read_text()
    text = text_of(page)
    assert len(page) < 600_000
    assert "A point of a training curve is the mean of up to 32 steps." in text
    assert f"3 samples, at {MOST_TIMES} of 40 validations." in text
    assert all(f"step {step:,}" in text for step in (250, 10_000))
    assert page.count('class="compare"') == 3 * (MOST_TIMES + 1)


def test_samples_that_a_validation_did_not_generate_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", course(20, 10))
    write_grid(run, (10, 20))
    (run / "validation" / "edits" / "00000010" / "1.jpg").unlink()
    assert write_report(run).read_text().count('class="compare"') == 3 + 2 + 3


def test_samples_left_out_are_explained(tmp_path: Path) -> None:
    rows = [train_row(step, skipped_samples=8, problems=[f"shard <{step}>: torn"] * 8) for step in range(1, 5)]
    page = write_report(write_run(tmp_path / "run", rows)).read_text()
    assert page.count("<li>shard &lt;") == 20
    assert "<li>shard &lt;1&gt;: torn</li>" in page
    assert "The first 20 of 32." in page and "Samples left out as unusable 32" in text_of(page)


@pytest.mark.parametrize("index", [{"miniature": True}, {"miniature": False}, None])
def test_a_miniature_is_called_one(tmp_path: Path, index: dict[str, bool] | None) -> None:
    model = tmp_path / "model"
    if index is not None:
        model.mkdir()
        (model / "model_index.json").write_text(json.dumps(index))
    run = write_run(tmp_path / "run", [train_row(1)], model=str(model))
    told = "A random-weight miniature" in text_of(write_report(run).read_text())
    assert told == bool(index and index["miniature"])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a training run"):
        write_report(tmp_path)


def test_a_run_without_metrics_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    with pytest.raises(UsageError, match="has no metrics yet"):
        write_report(run)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match=r"has no metrics\.jsonl"):
        write_report(run)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [train_row(1)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train"\n')
    with pytest.raises(EditFoundryError, match=r"metrics\.jsonl: line 2 is damaged"):
        write_report(run)


@pytest.mark.parametrize("text", ["{", "{}", '[{"number": "x", "type": "add", "instruction": "a"}]'])
def test_a_damaged_list_of_samples_is_named(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "run", course(10, 10))
    write_grid(run, (10,))
    (run / "validation" / "samples.json").write_text(text)
    with pytest.raises(EditFoundryError, match=r"samples\.json: damaged"):
        write_report(run)


def test_names_in_the_list_of_samples_open_no_other_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", course(10, 10))
    write_grid(run, (10,))
    entries = json.loads((run / "validation" / "samples.json").read_text())
    entries[0] |= {"source": "/etc/passwd", "target": "../../secret.jpg"}
    (run / "validation" / "samples.json").write_text(json.dumps(entries))
    assert write_report(run).read_text().count('class="compare"') == 6


def test_lines_are_told_apart_and_carry_a_legend() -> None:
    drawing = charts.lines({"a": [(0, 1), (2, 3)], "b": [(0, 2), (2, 2)]}, label="two", title="step")
    strokes = re.findall(r'd="M[^"]*L[^"]*" stroke="(#\d+)"[^>]*stroke-dasharray="([^"]*)"', drawing)
    assert strokes == [("#333333", "1,0"), ("#444444", "6,3")]
    assert ">a</text>" in drawing and ">b</text>" in drawing and " id=" not in drawing


def test_ordered_lines_go_through_the_ramp() -> None:
    drawing = charts.lines({str(i): [(0, i), (1, i)] for i in range(5)}, label="x", title="step", ramp=True)
    assert re.findall(r'L[^"]*" stroke="(#\d+)"', drawing)[:5] == [f"#77770{i}" for i in range(1, 6)]


def test_a_logarithmic_axis_has_decades_and_no_point_at_zero() -> None:
    drawing = charts.lines({"a": [(0, 0.0), (1, 0.02), (2, 30.0)]}, label="x", title="step", log=True)
    assert {"0.01", "0.1", "10", "100"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", drawing))
    (path,) = re.findall(r'd="(M[^"]*)" stroke="#333333"', drawing)
    assert path.count("L") == 1


def test_more_lines_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 3 lines can be told apart, got a, b, c, d"):
        charts.lines({name: [(0, 1)] for name in "abcd"}, label="x", title="step")


def test_lines_without_points_are_drawn_empty() -> None:
    for log in (False, True):
        assert "<svg" in charts.lines({}, label="x", title="step", ramp=log, log=log)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The report of a run with hostile texts, on a phone, the requests it made and the complaints."""
    rows = [train_row(1, loss_by_type={EVIL: 1.0, "add": 0.5}), validation_row(10), train_row(20), validation_row(20)]
    run = write_run(tmp_path / "run", rows, name=EVIL)
    write_grid(run, (10, 20), [("add", EVIL), *SAMPLES[1:]])
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(write_report(run).as_uri())
    yield SimpleNamespace(page=page, requests=requests, complaints=complaints)
    context.close()


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_in_a_browser(opened: SimpleNamespace) -> None:
    page = opened.page
    assert page.locator("h1").inner_text() == EVIL
    assert page.locator(".instruction").first.inner_text() == EVIL
    assert page.title() == " ".join(f"{EVIL} · training report".split())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    slider = page.get_by_role("slider").nth(1)
    slider.scroll_into_view_if_needed()
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "51"
    page.wait_for_timeout(300)
    shown = page.locator(".compare-after").nth(1)
    assert shown.evaluate("e => [e.naturalWidth, e.naturalHeight]") == [96, 64]
    stroke = page.locator('.chart [stroke="#333333"]').first.evaluate("e => getComputedStyle(e).stroke")
    assert stroke == "rgb(108, 191, 196)"
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert opened.complaints == []
