"""Photographs in containers: every layout, its rejects, and cuts by metadata before any pixel is read."""

import hashlib
import io
import json
import pickle
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from fsspec.implementations.memory import MemoryFileSystem
from photo_layouts import (
    img2dataset_rows,
    ingested,
    ingested_items,
    picture,
    reasons,
    write_img2dataset,
    write_tar,
)
from PIL import Image
from source_stages import config
from typer.testing import CliRunner

from editfoundry.core.config import validate
from editfoundry.core.errors import ConfigError, EditFoundryError
from editfoundry.core.hashing import sha256
from editfoundry.data_engine import runner
from editfoundry.data_engine.audit import funnel
from editfoundry.data_engine.cli import app
from editfoundry.data_engine.forget import forget
from editfoundry.data_engine.layouts import LAYOUTS, detect
from editfoundry.data_engine.readers import storage, tables
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.sources import IngestConfig, SourceSpec, list_sources
from editfoundry.data_engine.stages.ingest import Ingest


def spec(path: Path | str, format: str, **extra: Any) -> dict[str, Any]:
    return {"path": str(path), "format": format, **extra}


# WebDataset


def test_webdataset_samples_bring_their_texts(tmp_path: Path) -> None:
    first, second = picture(1), picture(2, kind="JPEG")
    record = {"url": "https://example.org/b", "license": "CC0", "caption": "a\ncup", "similarity": 0.3}
    members = {"a.png": first, "a.txt": b"A table.\x07", "dir/b.jpg": second, "dir/b.json": json.dumps(record).encode()}
    tar = write_tar(tmp_path / "0.tar", members)
    items, rejects, _ = ingested_items(spec(tar, "webdataset", licence="CC-BY-4.0", source_url="https://all.org"))
    assert not rejects
    one, two = (item.record for item in items)
    assert [item.blobs["original"] for item in items] == [first, second]
    assert [one.uri, two.uri] == [f"{tar}#a", f"{tar}#dir/b"]
    assert (one.text, one.licence, one.source_url) == ("A table.", "CC-BY-4.0", "https://all.org")
    assert (two.text, two.licence, two.source_url) == ("a cup", "CC0", "https://example.org/b")
    assert (one.sha256, one.width, one.height) == (sha256(first), 160, 128)


def test_webdataset_by_brace_pattern_and_columns(tmp_path: Path) -> None:
    for number in range(3):
        sample = {"0.jpg": picture(number), "0.seg.png": picture(9), "0.note": b"said", "0.cls": b"1"}
        write_tar(tmp_path / f"{number:03d}.tar", sample)
    sources, rejects = ingested(spec(tmp_path / "{000..001}.tar", "webdataset", columns={"text": "note"}))
    assert [Path(source.uri).name for source in sources] == ["000.tar#0", "001.tar#0"]
    assert [source.text for source in sources] == ["said", "said"]
    assert not rejects
    masks, _ = ingested(spec(tmp_path / "000.tar", "webdataset", columns={"image": "seg.png"}))
    assert [source.sha256 for source in masks] == [sha256(picture(9))]


def test_hostile_members_are_rejects_and_the_others_are_read(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    device = tarfile.TarInfo("device.png")
    device.type = tarfile.CHRTYPE
    huge = picture(7, 400, 400)
    members = [("good.png", picture(1)), ("../out.png", picture(2)), ("/abs.png", picture(2)), (link, b""),
               (device, b""), ("good.png", picture(3)), ("v1.2.png", picture(4)), ("two.png", picture(5)),
               ("two.jpg", picture(6)), ("readme.md", b"hello"), ("bad.png", b"no image"), ("huge.png", huge),
               (".x.png", b"x"), ("json.png", picture(8)), ("json.json", b'{"a": NaN}'),
               ("last.png", picture(9))]  # fmt: skip
    tar = write_tar(tmp_path / "0.tar", members)
    sources, rejects = ingested(spec(tar, "webdataset"), max_bytes=len(huge) - 1)
    assert [source.uri.rpartition("#")[2] for source in sources] == ["good", "last"]
    assert sources[0].sha256 == sha256(picture(1))
    found = {reject.detail.split(": ")[0].rpartition("#")[2].partition("@")[0]: reject.reason for reject in rejects}
    assert found == {
        "../out.png": "unsafe_member", "/abs.png": "unsafe_member", "link.png": "unsafe_member",
        "device.png": "unsafe_member", "good.png": "duplicate_key", "v1": "dotted_key", "two": "several_images",
        "readme": "no_image", "bad": "not_an_image", "huge": "too_many_bytes", "json": "bad_record",
    }  # fmt: skip
    assert not list(tmp_path.glob("*.png"))


def test_a_truncated_tar_gives_what_is_whole_and_one_reject(tmp_path: Path) -> None:
    raw = write_tar(tmp_path / "0.tar", {"a.png": picture(1), "b.png": picture(2)}).read_bytes()
    (tmp_path / "0.tar").write_bytes(raw[: 512 + len(picture(1)) + 1200])
    sources, rejects = ingested(spec(tmp_path / "0.tar", "webdataset"))
    assert [source.uri for source in sources] == [f"{tmp_path}/0.tar#a"]
    assert reasons(rejects) == ["truncated_tar"]
    assert rejects[0].detail.startswith(f"{tmp_path}/0.tar#end: ")


def test_split_tars_and_remote_tars_give_the_same_sources(tmp_path: Path) -> None:
    members = {f"{n}.png": picture(n) for n in range(4)}
    raw = write_tar(tmp_path / "0.tar", members).read_bytes()
    cut = len(raw) // 3
    memory = MemoryFileSystem()
    memory.pipe({f"/layouts/x.tar.split.{n:03d}": raw[n * cut : (n + 1) * cut] for n in range(4)})
    local, _ = ingested(spec(tmp_path, "webdataset"))
    remote, rejects = ingested(spec("memory://layouts", "webdataset"))
    assert not rejects
    assert [source.sha256 for source in remote] == [source.sha256 for source in local]
    assert remote[0].uri == "memory:///layouts/x.tar.split.000#0"


# img2dataset


@pytest.mark.parametrize("layout", ["webdataset", "files", "parquet"])
def test_img2dataset_rows_are_sources_in_each_of_its_formats(tmp_path: Path, layout: str) -> None:
    images = [picture(0), None, None, picture(3), picture(4)]
    rows = write_img2dataset(tmp_path / "out", images, layout, similarity=[0.1 * n for n in range(5)])
    items, rejects, listed = ingested_items(spec(tmp_path / "out", "img2dataset"))
    assert listed == 5
    assert [item.blobs["original"] for item in items] == [picture(0), picture(3), picture(4)]
    first = items[0].record
    assert first.uri == f"{tmp_path}/out/00000.parquet#0"
    assert (first.text, first.source_url) == ("caption 0", rows["url"][0])
    assert (first.scores["original_width"], first.scores["original_height"]) == (320, 256)
    assert reasons(rejects) == ["download_failed"] * 2
    assert "failed_to_resize: <urlopen error timed out>" in rejects[0].detail
    assert "failed_to_download: <urlopen error timed out>" in rejects[1].detail


def test_img2dataset_images_that_are_not_as_their_rows_say(tmp_path: Path) -> None:
    images = [picture(n, kind="JPEG") for n in range(6)]
    right = hashlib.sha256(images[5]).hexdigest()
    rows = img2dataset_rows(images)
    rows["key"][0] = "../../secret"
    rows["width"][1] = 4000
    rows["key"][2] = "000000099"
    rows["width"][3], rows["height"][3] = rows["height"][3], rows["width"][3]
    hashes = {"sha256": ["0" * 64] * 5 + [right]}
    write_img2dataset(tmp_path / "out", images, **{**rows, **hashes})
    (tmp_path / "secret.jpg").write_bytes(images[0])
    tar = {f"{key}.jpg": image for key, image in zip(rows["key"], images, strict=True) if key.isdigit()}
    write_tar(tmp_path / "out" / "00000.tar", {name: data for name, data in tar.items() if "99" not in name})
    _, rejects = ingested(spec(tmp_path / "out", "img2dataset"))
    assert reasons(rejects) == ["unsafe_member", "size_mismatch", "missing_image"]
    sources, rejects = ingested(spec(tmp_path / "out", "img2dataset", check_hash=True))
    assert reasons(rejects) == ["unsafe_member", "size_mismatch", "missing_image", "hash_mismatch", "hash_mismatch"]
    assert [source.sha256 for source in sources] == [right]


def test_unfinished_shards_of_img2dataset_are_refused_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_img2dataset(out, [picture(0)], shard="00000")
    write_img2dataset(out, [picture(1)], shard="00001")
    (out / "00001.parquet").unlink()
    write_img2dataset(out, [picture(2), picture(3)], shard="00002")
    (out / "00002_stats.json").write_text('{"count": 5}')
    write_img2dataset(out, [picture(4)], shard="00003")
    (out / "00003.parquet").write_bytes((out / "00003.parquet").read_bytes()[:-9])
    sources, rejects = ingested(spec(out, "img2dataset"))
    assert [Path(source.uri).name for source in sources] == ["00000.parquet#0", "00002.parquet#0", "00002.parquet#1"]
    assert reasons(rejects) == ["missing_file", "incomplete_shard", "damaged_table"]
    assert "given 5 addresses and wrote 2 rows" in rejects[1].detail
    assert "format webdataset" in rejects[0].detail


def test_a_damaged_tar_of_img2dataset_gives_its_whole_images(tmp_path: Path) -> None:
    write_img2dataset(tmp_path / "out", [picture(0), picture(1), picture(2)])
    tar = tmp_path / "out" / "00000.tar"
    tar.write_bytes(tar.read_bytes()[: len(picture(0)) + 4096])
    sources, rejects = ingested(spec(tmp_path / "out", "img2dataset"))
    assert [source.sha256 for source in sources] == [sha256(picture(0))]
    assert reasons(rejects) == ["truncated_tar", "truncated_tar"]
    assert all("ends inside the member" in reject.detail for reject in rejects)


# Metadata


LAION = {
    "URL": [f"https://example.org/{n}.jpg" for n in range(8)],
    "TEXT": [f"text {n}" for n in range(8)],
    "WIDTH": [1280.0, 1281.0, 2000.0, 2000.0, 2000.0, 2000.0, float("nan"), 2000.0],
    "HEIGHT": [2000.0] * 8,
    "similarity": [0.3] * 8,
    "punsafe": [0.1, 0.1, 0.5, 0.1, 0.1, None, 0.1, 0.1],
    "pwatermark": [0.1, 0.1, 0.1, 0.8, 0.81, 0.1, 0.1, 0.1],
    "AESTHETIC_SCORE": [5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 4.75],
    "hash": [-(2**62) + n for n in range(8)],
}
CUTS = {
    "pwatermark": {"max": 0.8},
    "punsafe": {"below": 0.5},
    "aesthetic": {"above": 4.75},
    "short_side": {"min": 1281},
}


def write_laion(path: Path, **columns: list[Any]) -> Path:
    pq.write_table(pa.table({**LAION, **columns}), path, row_group_size=3)
    return path


def test_laion_rows_are_cut_before_pixels_and_joined_by_address(tmp_path: Path) -> None:
    laion = write_laion(tmp_path / "laion.parquet")
    # Another order than LAION's, the last row failed, and one that LAION does not list.
    stored = [picture(3), picture(1), None]
    urls = [LAION["URL"][3], LAION["URL"][1], "https://example.org/other.jpg"]
    write_img2dataset(tmp_path / "out", stored, url=urls)
    items, rejects, listed = ingested_items(spec(laion, "laion", images=str(tmp_path / "out"), metadata=CUTS))
    assert listed == 8
    assert [(item.record.uri.rpartition("#")[2], item.blobs["original"]) for item in items] == [
        ("1", picture(1)), ("3", picture(3))]  # fmt: skip
    source = items[1].record
    assert (source.text, source.source_url) == ("text 3", LAION["URL"][3])
    assert {name: source.scores[name] for name in CUTS} == {
        "pwatermark": 0.8, "punsafe": 0.1, "aesthetic": 5.0, "short_side": 2000.0}  # fmt: skip
    rows = [reject.detail.partition(": ")[0].rpartition("#")[2] for reject in rejects]
    assert [(row, reject.reason, reject.score) for row, reject in zip(rows, rejects, strict=True)] == [
        ("0", "metadata_short_side", 1280.0), ("2", "metadata_punsafe", 0.5), ("4", "metadata_pwatermark", 0.81),
        ("5", "metadata_missing", None), ("6", "metadata_missing", None), ("7", "metadata_aesthetic", 4.75),
    ]  # fmt: skip


def test_a_passing_row_without_pixels_says_how_to_get_them(tmp_path: Path) -> None:
    laion = write_laion(tmp_path / "laion.parquet")
    sources, rejects = ingested(spec(laion, "laion"))
    assert not sources
    assert reasons(rejects) == ["not_downloaded"] * 8
    assert "img2dataset downloads it" in rejects[0].detail
    write_img2dataset(tmp_path / "out", [None, None], url=[LAION["URL"][0], LAION["URL"][1]])
    _, rejects = ingested(spec(laion, "laion", images=str(tmp_path / "out")))
    assert reasons(rejects) == ["download_failed"] * 2 + ["not_downloaded"] * 6


def test_laion_takes_tars_with_addresses_in_their_json(tmp_path: Path) -> None:
    laion = write_laion(tmp_path / "laion.parquet", aesthetic=LAION["AESTHETIC_SCORE"])
    members = {"x.png": picture(1), "x.json": json.dumps({"url": LAION["URL"][4]}).encode(), "y.png": picture(2)}
    write_tar(tmp_path / "0.tar", members)
    sources, rejects = ingested(spec(laion, "laion", images=str(tmp_path / "*.tar")))
    assert [(source.uri.rpartition("#")[2], source.sha256) for source in sources] == [("4", sha256(picture(1)))]
    assert reasons(rejects) == ["not_downloaded"] * 7


def test_cut_rows_are_never_looked_for_in_the_pixels(tmp_path: Path) -> None:
    """Once listed, everything that holds pixels is destroyed: the rows that the metadata cut must not notice."""
    out = tmp_path / "out"
    write_img2dataset(out, [picture(n) for n in range(6)], punsafe=[0.9, 0.1, 0.9, 0.9, 0.9, 0.9])
    tar = spec(out, "img2dataset", metadata={"punsafe": {"max": 0.5}})
    (out / "00000.tar").write_bytes(b"garbage" * 512)
    _, rejects = ingested(tar)
    assert reasons(rejects) == ["metadata_punsafe", "damaged_tar", *["metadata_punsafe"] * 4]

    path = tmp_path / "t.parquet"
    content = {"image": [picture(n) for n in range(4)], "punsafe": [0.9, 0.1, 0.9, 0.9]}
    pq.write_table(pa.table(content), path, row_group_size=2, compression="zstd", use_dictionary=False)
    footer = pq.ParquetFile(path).metadata
    raw = bytearray(path.read_bytes())
    for group in range(footer.num_row_groups):
        column = footer.row_group(group).column(0)
        raw[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = bytes(
            column.total_compressed_size
        )
    path.write_bytes(raw)
    _, rejects = ingested(spec(path, "parquet", metadata={"punsafe": {"max": 0.5}}))
    assert reasons(rejects) == ["metadata_punsafe", "damaged_table", "metadata_punsafe", "metadata_punsafe"]


def test_a_cut_by_a_column_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    laion = write_laion(tmp_path / "laion.parquet")
    with pytest.raises(ConfigError) as refused:
        ingested(spec(laion, "laion", metadata={"nsfw": {"max": 0.5}}))
    assert str(refused.value) == (
        f"ingest.sources: metadata.nsfw: {laion}: no column 'nsfw'; there are: "
        "URL, TEXT, WIDTH, HEIGHT, similarity, punsafe, pwatermark, AESTHETIC_SCORE, hash"
    )
    with pytest.raises(ConfigError, match=r"columns\.text: .*no column 'prompt'; there are: URL, TEXT"):
        ingested(spec(laion, "laion", columns={"text": "prompt"}))


def test_webdataset_is_cut_by_its_json(tmp_path: Path) -> None:
    facts = [
        {"width": 2000, "height": 1500, "AESTHETIC_SCORE": 5},
        {"width": 2000, "height": 100},
        {"width": 2000},
        None,
    ]
    members: dict[str, bytes] = {}
    for number, fact in enumerate(facts):
        members[f"{number}.png"] = picture(number)
        if fact is not None:
            members[f"{number}.json"] = json.dumps(fact).encode()
    write_tar(tmp_path / "0.tar", members)
    sources, rejects = ingested(spec(tmp_path / "0.tar", "webdataset", metadata={"short_side": {"min": 1000}}))
    assert [source.scores for source in sources] == [{"short_side": 1500.0}]
    assert reasons(rejects) == ["metadata_short_side", "metadata_missing", "metadata_missing"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"metadata": {"a": {}}, "format": "laion"}, "a cut needs one of min, max, above, below"),
        ({"metadata": {"a": {"min": float("nan")}}, "format": "laion"}, "finite"),
        ({"metadata": {"a": {"min": 1}}}, "metadata is for the format webdataset or parquet"),
        ({"manifest": "m.yaml", "format": "parquet"}, "manifest is for the format files"),
        ({"format": "imgedit-json"}, "needs `images`"),
        ({"format": "tfrecord"}, "format"),
        ({"format": "parquet", "columns": {"picture": "x"}}, "columns"),
    ],
)
def test_options_that_a_format_does_not_have_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(SourceSpec, {"path": "x", **bad}, "file.yaml")


# Parquet


def hf_table(path: Path, images: list[Any], **columns: list[Any]) -> Path:
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(images, struct), **columns}), path, row_group_size=2)
    return path


def test_parquet_rows_with_image_structs(tmp_path: Path) -> None:
    images = [{"bytes": picture(0), "path": "a.png"}, {"bytes": None, "path": "/data/b.png"}, None,
              {"bytes": b"", "path": None}, {"bytes": picture(4), "path": None}]  # fmt: skip
    columns = {"prompt": ["one", "2", "3", "4", None], "license": ["CC0", "", "", "", None], "number": list(range(5))}
    hf_table(tmp_path / "t.parquet", images, **columns)
    given = {"text": "prompt", "id": "number"}
    items, rejects, listed = ingested_items(spec(tmp_path, "parquet", columns=given, licence="unclear"))
    assert listed == 5
    assert [item.blobs["original"] for item in items] == [picture(0), picture(4)]
    assert [item.record.uri for item in items] == [f"{tmp_path}/t.parquet#{n}" for n in (0, 4)]
    assert [(item.record.text, item.record.licence) for item in items] == [("one", "CC0"), ("", "unclear")]
    assert reasons(rejects) == ["image_not_embedded", "no_image", "empty_file"]
    assert rejects[0].detail.startswith(f"{tmp_path}/t.parquet#1: id 1: only the path '/data/b.png' is given")


def test_parquet_with_plain_bytes_or_several_images_needs_a_name_only_where_it_is_open(tmp_path: Path) -> None:
    pq.write_table(pa.table({"data": [picture(0)], "n": [1]}), tmp_path / "one.parquet")
    assert len(ingested(spec(tmp_path / "one.parquet", "parquet"))[0]) == 1
    pq.write_table(pa.table({"before": [picture(0)], "after": [picture(1)]}), tmp_path / "two.parquet")
    with pytest.raises(ConfigError, match=r"columns that do: before, after; there are: before, after"):
        ingested(spec(tmp_path / "two.parquet", "parquet"))
    sources, _ = ingested(spec(tmp_path / "two.parquet", "parquet", columns={"image": "after"}))
    assert [source.sha256 for source in sources] == [sha256(picture(1))]
    pq.write_table(pa.table({"image": ["a.png"]}), tmp_path / "text.parquet")
    with pytest.raises(ConfigError, match="holds no images; columns that do: none"):
        ingested(spec(tmp_path / "text.parquet", "parquet"))


def test_damaged_tables_are_one_reject_and_the_others_are_read(tmp_path: Path) -> None:
    for number in range(2):
        hf_table(tmp_path / f"{number}.parquet", [{"bytes": picture(number), "path": None}])
    (tmp_path / "0.parquet").write_bytes(b"PAR1")
    sources, rejects = ingested(spec(tmp_path, "parquet"))
    assert [Path(source.uri).name for source in sources] == ["1.parquet#0"]
    assert reasons(rejects) == ["damaged_table"]


# Listing


def test_listing_a_table_reads_its_footer_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 300_000
    column = pa.array([b"x"]).take(pa.array(np.zeros(count, np.int64)))
    pq.write_table(pa.table({"image": column}), tmp_path / "many.parquet")
    opened: list[str] = []
    real = storage.open_input
    monkeypatch.setattr(tables, "open_input", lambda url: opened.append(url) or real(url))
    monkeypatch.setattr(tables.Table, "row", None)
    monkeypatch.setattr(tables.Table, "batches", None)
    sources = list_sources(IngestConfig(sources=(SourceSpec(path=str(tmp_path), format="parquet"),)))
    assert len(sources) == count
    assert len(opened) == 1
    assert sources[17].uri == f"{tmp_path}/many.parquet#17"
    assert sources[17].id == sha256(f"{tmp_path}/many.parquet#17")[:16]
    assert [source.locator.row for source in sources[count - 3 : count + 5]] == [count - 3, count - 2, count - 1]
    assert sources[-1].locator.row == count - 1
    shard = sources[1000:1003]
    assert pickle.loads(pickle.dumps(shard)) == tuple(shard)  # noqa: S301
    assert len(pickle.dumps(shard)) < 10_000
    (tmp_path / "many.parquet").unlink()
    assert len({source.identity() for source in sources[:100]}) == 100


def test_identity_follows_the_container_and_the_place(tmp_path: Path) -> None:
    path = hf_table(tmp_path / "t.parquet", [{"bytes": picture(n), "path": None} for n in range(2)])
    settings = IngestConfig(sources=(SourceSpec(path=str(path), format="parquet"),))
    before = [source.identity() for source in list_sources(settings)]
    assert before == [source.identity() for source in list_sources(settings)]
    assert before[0] != before[1]
    hf_table(path, [{"bytes": picture(n), "path": "x"} for n in range(2)])
    assert not set(before) & {source.identity() for source in list_sources(settings)}


def test_a_container_counts_once_and_never_inside_its_run(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"a.png": picture(1)})
    (tmp_path / "1.tar").symlink_to(tmp_path / "0.tar")
    both = IngestConfig(
        sources=tuple(SourceSpec(path=str(tmp_path / p), format="webdataset") for p in ("*.tar", "0.tar"))
    )
    assert [source.uri for source in list_sources(both)] == [f"{tmp_path}/0.tar#a"]
    with pytest.raises(ConfigError, match="belongs to the run itself"):
        list_sources(both, tmp_path)


def test_a_path_without_anything_of_its_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for name in ("webdataset", "parquet", "img2dataset"):
        with pytest.raises(ConfigError, match=f"holds nothing of the format {name}"):
            ingested(spec(tmp_path, name))
    with pytest.raises(ConfigError, match="no such file or folder"):
        ingested(spec(tmp_path / "none.tar", "webdataset"))


def test_auto_takes_what_is_plain_and_asks_otherwise(tmp_path: Path) -> None:
    write_img2dataset(tmp_path / "out", [picture(1)])
    write_tar(tmp_path / "0.tar", {"a.png": picture(1)})
    hf_table(tmp_path / "hf.parquet", [{"bytes": picture(1), "path": None}], url=["https://example.org"])
    write_laion(tmp_path / "laion.parquet")
    (tmp_path / "photographs").mkdir()
    (tmp_path / "r.json").write_text("{}")
    expected = {"out": "img2dataset", "0.tar": "webdataset", "hf.parquet": "parquet", "laion.parquet": "laion",
                "photographs": "files", "out/*": "img2dataset"}  # fmt: skip
    assert {name: detect(SourceSpec(path=str(tmp_path / name), format="auto")) for name in expected} == expected
    for name in ("r.json", "."):
        with pytest.raises(ConfigError, match="name it by `format`"):
            detect(SourceSpec(path=str(tmp_path / name), format="auto"))
    sources, _ = ingested(spec(tmp_path / "hf.parquet", "auto"))
    assert [source.source_url for source in sources] == ["https://example.org"]
    sources, _ = ingested(spec(tmp_path / "out" / "*", "auto"))
    assert [Path(source.uri).name for source in sources] == ["00000.parquet#0"]


def test_files_on_any_store(tmp_path: Path) -> None:
    memory = MemoryFileSystem()
    memory.pipe({"/shots/a.png": picture(1), "/shots/sub/b.png": picture(2), "/shots/.hidden.png": picture(3),
                 "/shots/bad.png": b"no"})  # fmt: skip
    sources, rejects = ingested({"path": "memory://shots", "licence": "CC0"})
    assert [source.uri for source in sources] == ["memory:///shots/a.png", "memory:///shots/sub/b.png"]
    assert [source.licence for source in sources] == ["CC0", "CC0"]
    assert reasons(rejects) == ["not_an_image"]
    assert len(ingested({"path": "memory://shots", "recursive": False})[0]) == 1
    assert len(ingested({"path": "memory://shots/*.png"})[0]) == 1
    (tmp_path / "m.yaml").write_text("only_listed: true\nphotographs: [{file: sub/b.png, text: A cup}, {file: no.png}]")
    sources, rejects = ingested({"path": "memory://shots", "manifest": str(tmp_path / "m.yaml")})
    assert [source.text for source in sources] == ["A cup"]
    assert reasons(rejects) == ["missing_file"]
    before = list_sources(config(".", ingest={"sources": [{"path": "memory://shots/a.png"}]}).ingest)
    memory.pipe("/shots/a.png", picture(5))
    after = list_sources(config(".", ingest={"sources": [{"path": "memory://shots/a.png"}]}).ingest)
    assert before[0].identity() != after[0].identity()
    with pytest.raises(ConfigError, match="there is no file"):
        ingested({"path": "memory://nowhere"})


def test_image_of_a_photograph_turned_by_exif_is_no_mismatch(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(picture(1)))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(buffer, "JPEG", exif=exif)
    write_img2dataset(tmp_path / "out", [buffer.getvalue()])
    sources, rejects = ingested(spec(tmp_path / "out", "img2dataset"))
    assert not rejects
    assert (sources[0].width, sources[0].height) == (128, 160)


# Selecting


def test_select_writes_the_rows_worth_downloading(tmp_path: Path) -> None:
    for number in range(2):
        write_laion(tmp_path / f"{number}.parquet")
    cuts = ["metadata.pwatermark.max=0.8", "metadata.punsafe.below=0.5", "metadata.aesthetic.above=4.75",
            "metadata.short_side.min=1281"]  # fmt: skip
    out = tmp_path / "urls.parquet"
    call = [
        "select",
        str(tmp_path / "{0,1}.parquet"),
        "-o",
        str(out),
        *(part for cut in cuts for part in ("--set", cut)),
    ]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    kept = list(tables.rows(str(out)))
    assert [row["URL"] for row in kept] == [LAION["URL"][1], LAION["URL"][3]] * 2
    assert tables.columns(str(out)) == list(LAION)
    assert kept[0]["hash"] == LAION["hash"][1]
    assert "kept 4, metadata_aesthetic 2, metadata_missing 4" in done.output
    assert not list(tmp_path.glob(".*part"))


def test_select_says_what_is_wrong_and_leaves_nothing(tmp_path: Path) -> None:
    write_laion(tmp_path / "a.parquet")
    write_laion(tmp_path / "b.parquet", more=list(range(8)))
    out = tmp_path / "urls.parquet"
    for paths, extra, message in (
        (["a.parquet", "b.parquet"], [], "its columns are not those of the first table"),
        (["a.parquet"], ["metadata.nsfw.max=1"], "no column 'nsfw'; there are: URL, TEXT"),
        (["a.parquet"], ["metadata.punsafe.most=1"], "valid keys: above, below, max, min"),
        (["none.parquet"], [], "no such file or folder"),
    ):
        call = ["select", *(str(tmp_path / path) for path in paths), "-o", str(out)]
        done = CliRunner().invoke(app, [*call, *(part for cut in extra for part in ("--set", cut))])
        assert isinstance(done.exception, EditFoundryError)
        assert message in str(done.exception)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


# A run


@pytest.mark.slow
def test_a_run_over_containers_accounts_for_every_source_and_forgets_by_address(tmp_path: Path) -> None:
    images = [picture(n) if n % 3 else None for n in range(10)]
    rows = write_img2dataset(tmp_path / "out", images, punsafe=[0.1 * n for n in range(10)])
    write_tar(tmp_path / "a.tar", {f"{n}.png": picture(20 + n) for n in range(5)})
    sources = [spec(tmp_path / "out", "img2dataset", metadata={"punsafe": {"max": 0.55}}),
               spec(tmp_path / "a.tar", "webdataset")]  # fmt: skip
    folder = tmp_path / "run"
    runner.run(config(".", ingest={"sources": sources}, shard_size=4), folder, workers=2, stages=(Ingest,))
    (row,) = funnel(RunDir.existing(folder)).rows
    assert (row.inputs, row.accepted, row.rejected, row.shards) == (15, 9, 6, 4)
    assert row.rejects == {"download_failed": 4, "metadata_punsafe": 2}
    forget(RunDir.existing(folder), rows["url"][1])
    runner.run(config(".", ingest={"sources": sources}, shard_size=5, seed=1), folder, stages=(Ingest,))
    (row,) = funnel(RunDir.existing(folder)).rows
    assert (row.inputs, row.accepted, row.shards) == (15, 8, 3)
    assert row.rejects == {"download_failed": 4, "forgotten": 1, "metadata_punsafe": 2}


def test_the_documented_sources_are_a_configuration() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    documented = validate(IngestConfig, yaml.safe_load(block)["ingest"], "sources.md")
    assert {source.format for source in documented.sources} == set(LAYOUTS)
    assert set(re.findall(r"^\| `([a-z0-9-]+)`", page.partition("## Columns")[0], re.MULTILINE)) == {*LAYOUTS, "auto"}
