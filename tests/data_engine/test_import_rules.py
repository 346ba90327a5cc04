"""What becomes of a row: sizes, masks, texts, types and conversations, each refusal with its reason."""

from pathlib import Path
from typing import Any

import import_data as tiny
import numpy as np
import pytest

from editfoundry.core.errors import ConfigError
from editfoundry.core.geometry import Mask
from editfoundry.core.images import decode_jpeg, decode_mask_png
from editfoundry.data_engine.imports.config import DatasetSpec, ImportConfig, ObservedMask
from editfoundry.data_engine.imports.pixels import is_dataset_jpeg, observed_mask, open_picture, pasted, same_shape
from editfoundry.data_engine.imports.rows import RawTurn, RowRefused
from editfoundry.data_engine.imports.texts import clean_instruction
from editfoundry.data_engine.imports.types import type_of

BEFORE = tiny.scene(1, (256, 192))
AFTER = tiny.with_disc(BEFORE, (128, 96), 30)


def one(
    tmp_path: Path, before: bytes, after: bytes, mask: bytes | None = None, kind: str = "add", **changes: Any
) -> tiny.Result:
    """Import a single row."""
    path = tiny.table(
        tmp_path / "x.parquet",
        {"a": [before], "b": [after], "m": [mask], "t": ["Add a ball."], "k": [kind]},
        {"m": tiny.pa.binary()},
    )
    columns = {"source": "a", "result": "b", "mask": "m", "instruction": "t", "type": "k"}
    dataset = {"layout": "parquet", "path": str(path), "columns": columns, **changes.pop("dataset", {})}
    return tiny.imported(tmp_path / "run", dataset, **changes)


def half(pixels: np.ndarray) -> np.ndarray:
    """The picture at half its size."""
    height, width = pixels.shape[:2]
    small: np.ndarray = pixels.reshape(height // 2, 2, width // 2, 2, 3).mean(axis=(1, 3)).astype(np.uint8)
    return small


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1366, 1024), (1360, 1024), False),
        ((1920, 1440), (1366, 1024), True),
        ((1024, 768), (512, 384), True),
        ((1000, 667), (600, 400), True),
        ((640, 480), (480, 640), False),
        ((100, 100), (100, 100), True),
    ],
)
def test_one_shape_up_to_rounding(first: tuple[int, int], second: tuple[int, int], expected: bool) -> None:
    assert same_shape(first, second) is same_shape(second, first) is expected


def test_sizes_of_one_shape_meet_on_the_smaller_grid_and_others_are_refused(tmp_path: Path) -> None:
    result = one(tmp_path / "1", tiny.png(BEFORE), tiny.png(half(AFTER)), dataset={"certificate": False})
    row = result.rows["Add a ball."]
    assert (row["width"], row["height"]) == (128, 96)
    assert decode_jpeg(result.member("Add a ball.", "source")).shape == (96, 128, 3)
    refused = one(tmp_path / "2", tiny.png(BEFORE), tiny.png(AFTER[:, :250])).rejects["render"][0]
    assert refused.reason == "size_mismatch"
    assert "source 256×192 and result 250×192" in refused.detail


def test_a_mask_of_another_size_is_refused_with_both_sizes(tmp_path: Path) -> None:
    small = tiny.disc_mask((128, 96), (64, 48), 17)
    refused = one(tmp_path / "1", tiny.png(BEFORE), tiny.png(AFTER), small).rejects["render"][0]
    assert refused.reason == "mask_size_mismatch"
    assert "the mask is 128×96, the picture 256×192" in refused.detail
    taken = one(tmp_path / "2", tiny.png(BEFORE), tiny.png(AFTER), small, dataset={"resize_masks": True})
    assert np.pi * 34**2 <= taken.rows["Add a ball."]["mask_area"] * 256 * 192 <= np.pi * 36**2
    tall = tiny.disc_mask((96, 128), (48, 64), 17)
    assert one(tmp_path / "3", tiny.png(BEFORE), tiny.png(AFTER), tall, dataset={"resize_masks": True}).reasons == [
        "mask_size_mismatch"
    ]


def test_masks_are_cut_at_128_in_one_channel_or_three(tmp_path: Path) -> None:
    grey = np.full((192, 256), 127, np.uint8)
    grey[60:132, 92:164] = 128
    for name, mask in (("grey", grey), ("colour", np.dstack([grey, grey * 0, grey * 0]))):
        result = one(tmp_path / name, tiny.png(BEFORE), tiny.png(AFTER), tiny.png(mask))
        assert np.array_equal(decode_mask_png(result.member("Add a ball.", "mask")).array, grey == 128)
    assert one(tmp_path / "3", tiny.png(BEFORE), tiny.png(AFTER), tiny.png(grey // 2)).reasons == ["empty_mask"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "missing_image"),
        (b"no picture", "not_an_image"),
        (tiny.png(AFTER)[:900], "truncated_image"),
        (tiny.png(np.zeros((4000, 30, 3), np.uint8)), "size_mismatch"),
        (tiny.png(AFTER[:40, :40]), "size_mismatch"),
    ],
)
def test_unusable_pictures_are_rejects_with_the_source_named(tmp_path: Path, data: bytes, reason: str) -> None:
    refused = one(tmp_path, tiny.png(BEFORE), data).rejects["render"][0]
    assert refused.reason == reason
    assert refused.detail.startswith(f"{tmp_path}/x.parquet#row=0: ")
    if reason != "missing_image":
        assert refused.source_sha256 == tiny.sha256(tiny.png(BEFORE))


def test_bombs_and_specks_are_refused(tmp_path: Path) -> None:
    big = tiny.png(np.zeros((1200, 1200, 3), np.uint8))
    assert one(tmp_path / "1", big, big, ingest={"max_pixels": 1_000_000}).reasons == ["too_many_pixels"]
    assert one(tmp_path / "2", tiny.png(BEFORE[:40, :40]), tiny.png(AFTER[:40, :40])).reasons == ["too_small"]


def test_the_observed_mask_covers_the_change_and_no_specks() -> None:
    noisy = AFTER.copy()
    noisy[5, 5] = 255 - noisy[5, 5]
    mask = observed_mask(BEFORE, noisy, ObservedMask(dilate=8))
    disc = Mask(np.abs(BEFORE.astype(int) - AFTER).max(axis=2) > 24)
    assert mask is not None
    assert disc.containment(mask) == 1.0
    assert not mask.array[:20, :20].any()
    assert observed_mask(BEFORE, BEFORE, ObservedMask()) is None


def test_noise_outside_is_refused_pasted_over_or_measured(tmp_path: Path) -> None:
    """A result that went through another encoder differs everywhere a little."""
    source, result = tiny.png(BEFORE), tiny.jpeg(AFTER, quality=70, subsampling=2)
    refused = one(tmp_path / "1", source, result)
    assert refused.reasons == ["changed_outside_mask"]
    assert refused.rejects["verify"][0].score > 0
    pasted_back = one(tmp_path / "2", source, result, dataset={"composite": True})
    row = pasted_back.rows["Add a ball."]
    assert row["outside_max"] == 0.0
    measured = one(tmp_path / "3", source, result, dataset={"certificate": False}).rows["Add a ball."]
    assert 0 < measured["outside_mean"] < measured["outside_max"] == refused.rejects["verify"][0].score
    assert row["mask_area"] > measured["mask_area"]
    assert (row["gate_mask_from"], row["gate_composited"], row["gate_reencoded"]) == ("observed", True, True)


def test_pasting_changes_nothing_outside_of_its_mask() -> None:
    mask = Mask(np.pad(np.ones((40, 40), bool), ((60, 92), (80, 136))))
    other = 255 - BEFORE
    result, whole = pasted(BEFORE, other, mask, 6)
    assert np.array_equal(result[~whole.array], BEFORE[~whole.array])
    assert np.array_equal(result[mask.array], other[mask.array])
    assert mask.containment(whole) == 1.0


def test_a_local_edit_without_any_change_is_refused(tmp_path: Path) -> None:
    assert one(tmp_path / "1", tiny.png(BEFORE), tiny.png(BEFORE)).reasons == ["no_visible_change"]
    small = tiny.disc_mask((256, 192), (20, 20), 10)
    assert one(tmp_path / "2", tiny.png(BEFORE), tiny.png(BEFORE), small).reasons == ["no_visible_change"]
    assert one(tmp_path / "3", tiny.png(BEFORE), tiny.png(BEFORE), kind="motion").reasons == ["no_visible_change"]
    moved = one(tmp_path / "4", tiny.png(BEFORE), tiny.png(AFTER), kind="motion").rows["Add a ball."]
    assert moved["length_mask"] is None


def test_only_bare_444_jpegs_on_the_grid_are_kept() -> None:
    grid = tiny.Grid(256, 192)
    good = tiny.stored(BEFORE)

    def kept(data: bytes) -> bool:
        return is_dataset_jpeg(open_picture(data, "x", 10**6), grid)

    assert kept(good)
    assert kept(tiny.jpeg(BEFORE))
    for bad in (
        tiny.jpeg(BEFORE, subsampling=2),
        tiny.png(BEFORE),
        tiny.jpeg(BEFORE, comment=b"hello"),
        tiny.jpeg(BEFORE, progressive=True),
        tiny.jpeg(half(BEFORE)),
        good + b"\0trailing",
        tiny.jpeg(BEFORE, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"),
    ):
        assert not kept(bad)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("  Add\ta\ncat. ", "Add a cat."),
        ("Add <b>a</b> cat &amp; dog", "Add a cat & dog"),
        ("Add<script>alert(1)</script> a cat", "Add a cat"),
        ("&lt;img src=x&gt;Add it", "Add it"),
        ("Add a\x00 \u202ecat\ud800", "Add a cat"),
        ("make it 5 < 6", "make it 5 < 6"),
        (b"Add \xc3\xa9clair", "Add éclair"),
    ],
)
def test_texts_are_cleaned(value: Any, expected: str) -> None:
    assert clean_instruction(value, 30) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no_instruction"),
        (7, "no_instruction"),
        ("", "no_instruction"),
        (" \n…", "no_instruction"),
        ("<br><p></p>", "no_instruction"),
        (["Add"], "no_instruction"),
        (b"\xff\xfe", "not_utf8"),
        ("word " * 31, "long_instruction"),
        ("x" * 1001, "long_instruction"),
        ("<" * 20_000, "long_instruction"),
    ],
)
def test_texts_that_say_nothing_usable_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(RowRefused) as refused:
        clean_instruction(value, 30)
    assert refused.value.reason == reason


def test_types_by_table_by_name_by_verb_or_not_at_all() -> None:
    columns = {"source": "a", "result": "b", "instruction": "t", "type": "k"}
    spec = DatasetSpec.model_validate(
        {
            "layout": "parquet",
            "path": "x",
            "columns": columns,
            "infer_types": True,
            "types": {"Wipe Out": "remove", "local_colour": "adjust"},
        }
    )

    def found(word: str, text: str = "Do something.") -> str:
        return type_of(RawTurn(b"", b"", text, type=word), text, spec)

    assert found("Wipe Out") == "remove"
    assert found("3.1_Local Colour") == found("local-colour") == "adjust"
    assert found("Style") == "style"
    assert found("", "Erase the cat.") == "remove"
    for word, text in (("viewpoint", "Erase the cat."), ("", "Do something.")):
        with pytest.raises(RowRefused, match=word or "Do something"):
            found(word, text)


def test_a_conversation_whose_turns_do_not_join_is_refused(tmp_path: Path) -> None:
    pictures = [BEFORE, AFTER, tiny.scene(5, (256, 192)), tiny.with_disc(AFTER, (40, 40), 20, (0, 200, 0))]
    tar = tmp_path / "p.tar"
    tar.write_bytes(
        tiny.tar(
            [(f"p/{number}.png", tiny.png(pixels)) for number, pixels in enumerate(pictures)]
            + [("p/again.png", tiny.png((AFTER.astype(int) + 1).clip(0, 255).astype(np.uint8)))]
        )
    )

    def turns(*names: str, texts: tuple[str, str] = ("Add a ball.", "Add a lime.")) -> list[dict[str, Any]]:
        pairs = list(zip(names[::2], names[1::2], strict=True))
        return [
            {"input_images": [f"p/{a}.png"], "output_images": [f"p/{b}.png"], "prompt": text}
            for (a, b), text in zip(pairs, texts, strict=True)
        ]

    table = tiny.table(
        tmp_path / "x.parquet",
        {
            "data": [
                turns("0", "1", "2", "3"),
                turns("0", "1", "again", "3", texts=("Add a disc.", "Add a green lime.")),
                [],
            ]
        },
    )
    result = tiny.imported(
        tmp_path / "run", {"layout": "imgedit", "path": str(table), "images": [str(tar)], "certificate": False}
    )
    assert result.reasons == ["broken_conversation", "bad_record"]
    assert "turn 2 starts from a picture that no earlier turn made" in result.rejects["render"][0].detail
    first, second = result.rows["Add a disc."], result.rows["Add a green lime."]
    assert second["parent_key"] == first["key"]
    assert second["conversation_kind"] == "content_understanding"
    assert second["source_sha256"] == first["result_sha256"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"types": {"a": "recolour"}}, "recolour is none of ours"),
        ({"columns": {"source": "a"}}, "name the result and the in"),
        ({"layout": "imgedit"}, "name the tars"),
        ({"layout": "json"}, "layout"),
        ({"pick": "best"}, "pick"),
        ({"columns": {"source": "a", "result": "b", "instruction": "t"}}, "say where the type"),
        ({"scores": {"s": {"low": 3, "high": 1}}}, "low < high"),
        ({"masks": ["{other}.png"]}, "the fields are"),
    ],
)
def test_wrong_configurations_are_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    entry = {"layout": "parquet", "path": "x", **change}
    (tmp_path / "c.yaml").write_text(tiny.yaml_text({"ingest": {"datasets": [entry]}}))
    with pytest.raises(ConfigError, match=message) as error:
        tiny.load_config(ImportConfig, tmp_path / "c.yaml")
    assert "\n" not in str(error.value)


def test_datasets_are_told_apart_and_gates_known() -> None:
    entry = {"layout": "scaleedit", "path": "x"}
    for change, message in (
        ({"ingest": {"datasets": [entry, entry]}}, "two datasets go by the name 'scaleedit'"),
        ({"verify": {"gates": ["change"]}}, "geometry gate may not be left out"),
        ({"verify": {"gates": ["geometry", "nice"]}}, "unknown gates"),
        ({"models": {"scorer": "konse"}}, "did you mean 'conse'"),
    ):
        with pytest.raises(ValueError, match=message):
            ImportConfig.model_validate({"ingest": {"datasets": [entry]}, **change})
    both = ImportConfig.model_validate({"ingest": {"datasets": [entry, {**entry, "name": "second"}]}})
    assert [spec.label for spec in both.ingest.datasets] == ["scaleedit", "second"]
    assert ImportConfig.model_validate(both.model_dump(mode="json")) == both
