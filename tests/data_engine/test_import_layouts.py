"""Every layout that is imported, from tables and tars written byte by byte to the index of the dataset."""

import json
from pathlib import Path

import import_data as tiny
import pyarrow as pa
import pytest

from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.core.images import decode_jpeg, decode_mask_png
from editfoundry.data_engine.imports.config import ImportConfig
from editfoundry.data_engine.imports.listing import list_rows
from editfoundry.data_engine.readers.storage import ContainerError

SCORES = ("instruction_following_score", "editing_consistency_score", "generation_quality_score")


def scaleedit(path: Path, rows: list[tuple[object, str, object, bytes, bytes]], **scores: list[float]) -> Path:
    """A ScaleEdit table of (id, task, instruction, source, result) rows; scores are 3 unless given."""
    ids, tasks, texts, sources, results = (list(column) for column in zip(*rows, strict=True))
    columns = {
        "id": ids,
        "edit_task": tasks,
        "edit_instruction": texts,
        "source_image": sources,
        "edited_image": results,
        **{name: scores.get(name, [3] * len(rows)) for name in SCORES},
    }
    columns |= {f"{what}_{side}": [64] * len(rows) for what in ("source", "edited") for side in ("width", "height")}
    return tiny.table(path, columns)


def test_scaleedit_rows_become_edges_with_their_scores(tmp_path: Path) -> None:
    before, after = tiny.scene(1), tiny.with_disc(tiny.scene(1))
    styled = 255 - tiny.scene(2)
    scaleedit(
        tmp_path / "2.1_object_addition/a_0000.parquet",
        [
            (7, "object_addition", "Add a red ball.", tiny.png(before), tiny.png(after)),
            (8, "2.2_object_removal", "Remove the red ball.", tiny.png(after), tiny.png(before)),
            (9, "Style Transfer", "Turn the image into a negative.", tiny.png(tiny.scene(2)), tiny.png(styled)),
            (10, "scientific_reasoning", "What if it froze?", tiny.png(before), tiny.png(after)),
            (11, "object_addition", "Add a low ball.", tiny.png(before), tiny.png(after)),
            (12, "object_addition", "Add an odd ball.", tiny.png(before), tiny.png(after)),
            (13, "object_addition", "Add no number.", tiny.png(before), tiny.png(after)),
        ],
        editing_consistency_score=[3.0, 2.0, 3.0, 3.0, 1.0, 7.0, float("nan")],
    )
    result = tiny.imported(
        tmp_path / "run",
        {
            "layout": "scaleedit",
            "path": str(tmp_path / "*/*.parquet"),
            "licence": "MIT",
            "source_url": "https://x.org/s",
            "scores": {"editing_consistency_score": {"minimum": 2}},
        },
    )

    assert [
        (row["type"], row["licence"], row["source_url"], row["origin"], row["stack"]) for row in result.rows.values()
    ] == [(kind, "MIT", "https://x.org/s", "imported", "imported") for kind in ("add", "remove", "style")]
    row = result.rows["Remove the red ball."]
    assert (row["gate_dataset_editing_consistency_score"], row["gate_dataset_generation_quality_score"]) == (2.0, 3.0)
    assert (row["outside_max"], row["width"], row["height"]) == (0.0, *tiny.SIZE)
    assert result.rows["Turn the image into a negative."]["outside_max"] is None
    assert [(reject.reason, reject.score) for reject in result.rejects["render"]] == [
        ("unknown_type", None),
        ("low_score", 1.0),
        ("bad_score", 7.0),
        ("bad_score", None),
    ]
    assert "'scientific_reasoning'" in result.rejects["render"][0].detail
    details = json.loads(result.member("Add a red ball.", "json"))
    assert details["target"]["label"] == "red ball"
    mask = decode_mask_png(result.member("Add a red ball.", "mask"))
    assert [round(side) for side in details["operation"]["box"]] == [round(side) for side in mask.box().as_list()]  # type: ignore[union-attr]


def test_omniedit_takes_images_as_structs_and_one_of_its_prompts(tmp_path: Path) -> None:
    rows = 8
    columns = {
        "omni_edit_id": [f"task_{number}" for number in range(rows)],
        "task": ["addition"] * rows,
        "src_img": [tiny.struct(tiny.png(tiny.scene(number))) for number in range(rows)],
        "edited_img": [tiny.struct(tiny.png(tiny.with_disc(tiny.scene(number)))) for number in range(rows)],
        "edited_prompt_list": [[f"Add ball {number}.", f"Add the ball called {number}."] for number in range(rows)],
        "width": [128] * rows,
        "height": [96] * rows,
        "sc_score_1": [9] * rows,
        "sc_score_2": [8] * rows,
        "pq_score": [7] * rows,
        "o_score": [7.9] * rows,
    }
    path = tiny.table(
        tmp_path / "train-00000-of-00001.parquet", columns, {"src_img": tiny.IMAGE, "edited_img": tiny.IMAGE}
    )
    first = tiny.imported(tmp_path / "first", {"layout": "omniedit", "path": str(path)})
    assert sorted(first.rows) == [f"Add ball {number}." for number in range(rows)]
    assert {row["gate_dataset_o_score"] for row in first.rows.values()} == {7.9}
    drawn = tiny.imported(tmp_path / "drawn", {"layout": "omniedit", "path": str(path), "pick": "draw"})
    called = [text for text in drawn.rows if "called" in text]
    assert 0 < len(called) < rows
    assert {row["key"] for row in drawn.rows.values()} == {row["key"] for row in first.rows.values()}


def test_any_parquet_by_a_column_map(tmp_path: Path) -> None:
    before, after = tiny.scene(3), tiny.with_disc(tiny.scene(3))
    images = pa.struct([("before", pa.binary()), ("after", pa.binary())])
    path = tiny.table(
        tmp_path / "x.parquet",
        {
            "key": ["a", "a", "b"],
            "pair": [{"before": tiny.png(before), "after": tiny.png(after)}] * 3,
            "text": ["Put a ball here.", "Put a ball there.", "Put a ball elsewhere."],
            "where": [tiny.disc_mask(channels=3)] * 3,
            "thing": ["red ball", "red ball", None],
        },
        {"pair": images},
    )
    entry = {
        "layout": "parquet",
        "path": str(path),
        "type": "add",
        "columns": {
            "id": "key",
            "source": "pair.before",
            "result": "pair.after",
            "instruction": "text",
            "mask": "where",
            "target": "thing",
        },
    }
    result = tiny.imported(tmp_path / "run", entry)
    assert sorted(result.rows) == ["Put a ball elsewhere.", "Put a ball here."]
    assert result.reasons == ["duplicate_id"]
    mask = decode_mask_png(result.member("Put a ball here.", "mask"))
    assert mask.area == decode_mask_png(result.member("Put a ball elsewhere.", "mask")).area == 889
    labels = [json.loads(result.member(text, "json"))["target"]["label"] for text in sorted(result.rows)]
    assert labels == ["ball", "red ball"]


def test_webdataset_by_extensions_and_json_values(tmp_path: Path) -> None:
    before, after = tiny.scene(4), tiny.with_disc(tiny.scene(4))

    def sample(key: str, text: bytes, extra: dict[str, object]) -> list[tuple[str, bytes]]:
        return [
            (f"{key}.input.jpg", tiny.jpeg(before)),
            (f"{key}.output.jpg", tiny.jpeg(after)),
            (f"{key}.txt", text),
            (f"{key}.json", json.dumps(extra).encode()),
        ]

    members = [
        *sample("d/0001", b"Add a ball.", {"kind": {"name": "add"}, "score": 0.9}),
        *sample("d/0002", b"Add a \xff ball.", {"kind": {"name": "add"}, "score": 0.9}),
        *sample("d/0003", b"Add a poor ball.", {"kind": {"name": "add"}, "score": 0.2}),
        *sample("d/0001", b"Add a second ball.", {"kind": {"name": "add"}, "score": 0.9}),
        ("d/0004.input.jpg", tiny.jpeg(before)),
        ("d/0004.txt", b"Add nothing."),
        *sample("d/0005", b"Add a rounder ball.", {"kind": {"name": "add"}})[:3],
        ("d/0005.json", b'{"kind": [[['),
        ("../evil.input.jpg", b"x"),
        ("/etc/evil.input.jpg", b"x"),
    ]
    (tmp_path / "a.tar").write_bytes(tiny.tar(members))
    result = tiny.imported(
        tmp_path / "run",
        {
            "layout": "webdataset",
            "path": str(tmp_path / "*.tar"),
            "scores": {"score": {"column": "json:score", "low": 0, "high": 1, "minimum": 0.5}},
            "columns": {"source": "input.jpg", "result": "output.jpg", "instruction": "txt", "type": "json:kind.name"},
        },
    )
    assert list(result.rows) == ["Add a ball."]
    assert sorted(result.reasons) == [
        "bad_record",
        "duplicate_id",
        "low_score",
        "missing_image",
        "not_utf8",
        "unsafe_member",
        "unsafe_member",
    ]


def test_a_tar_cut_short_gives_what_is_whole_and_says_the_rest(tmp_path: Path) -> None:
    members = []
    for key in ("one", "two"):
        picture = tiny.scene(len(members))
        members += [
            (f"{key}.a.png", tiny.png(picture)),
            (f"{key}.b.png", tiny.png(tiny.with_disc(picture))),
            (f"{key}.txt", f"Add ball {key}.".encode()),
        ]
    whole = tiny.tar(members)
    (tmp_path / "a.tar").write_bytes(whole[: len(whole) - 2048])
    (tmp_path / "b.tar").write_bytes(b"\x1f\x8b" + whole)
    result = tiny.imported(
        tmp_path / "run",
        {
            "layout": "webdataset",
            "path": str(tmp_path / "*.tar"),
            "type": "add",
            "columns": {"source": "a.png", "result": "b.png", "instruction": "txt"},
        },
    )
    assert list(result.rows) == ["Add ball one."]
    assert sorted(result.reasons) == ["compressed_tar", "no_instruction", "truncated_tar"]


def test_imgedit_pictures_come_from_split_tars_cut_anywhere(tmp_path: Path) -> None:
    """Singles and conversations of the release: types and masks by path, parts cut in the middle of members."""
    base, one = tiny.scene(5), tiny.with_disc(tiny.scene(5))
    two = tiny.with_disc(one, (30, 30), 12, (20, 200, 60))
    three = tiny.with_disc(one, (100, 70), 12, (240, 220, 30))
    single, multi = "results_remove_laion_part5/00094_1", "results_version_backtracking_part0/00031_2"
    pictures = {
        f"{single}/original.png": tiny.png(one),
        f"{single}/result.png": tiny.png(base),
        f"{single}/mask.png": tiny.disc_mask(),
        f"{single}/result.json": b"{}",
    }
    data = tiny.tar(list(pictures.items()))
    tiny.split(tmp_path / "Singleturn", "remove_part5.tar.split", data, [700, len(data) // 2])
    turns = [(base, one), (one, two), (one, three)]
    members = [
        (f"{multi}/{name}_{number}.png", tiny.png(pixels))
        for number, pair in enumerate(turns)
        for name, pixels in zip(("origin", "result"), pair, strict=True)
    ]
    data = tiny.tar(members)
    tiny.split(tmp_path / "Multiturn", "version.tar.split", data, [513, 40_000])
    tiny.table(
        tmp_path / "Parquet/remove_part5.parquet",
        {
            "input_images": [
                [f"{single}/original.png"],
                [f"{single}/gone.png"],
                ["../../etc/passwd"],
                ["/etc/passwd"],
                [],
            ],
            "output_images": [[f"{single}/result.png"]] * 5,
            "prompt": ["Remove the ball.", "b", "c", "d", "e"],
        },
        {"input_images": pa.list_(pa.string())},
    )
    texts = [
        "add a red ball",
        "replace the ball with a lime",
        "withdraw the previous round of modifications, make it new",
    ]
    tiny.table(
        tmp_path / "Parquet/version.parquet",
        {
            "data": [
                [
                    {
                        "input_images": [f"{multi}/origin_{n}.png"],
                        "output_images": [f"{multi}/result_{n}.png"],
                        "prompt": texts[n],
                    }
                    for n in range(3)
                ]
            ]
        },
    )
    result = tiny.imported(
        tmp_path / "run",
        {
            "layout": "imgedit",
            "path": str(tmp_path / "Parquet/*.parquet"),
            "images": [str(tmp_path / "Singleturn/*"), str(tmp_path / "Multiturn/*.split.*")],
        },
    )

    assert result.reasons == ["missing_member", "bad_path", "bad_path", "bad_record"]
    row = result.rows["Remove the ball."]
    assert (row["type"], row["conversation_kind"]) == ("remove", "single")
    assert decode_mask_png(result.member("Remove the ball.", "mask")).area == 889
    turns_of = [result.rows[text] for text in texts]
    assert [turn["type"] for turn in turns_of] == ["add", "replace", "adjust"]
    assert {turn["conversation_kind"] for turn in turns_of} == {"version_backtracking"}
    first = turns_of[0]["key"]
    assert [turn["parent_key"] for turn in turns_of] == [None, first, first]
    assert turns_of[2]["source_sha256"] == turns_of[0]["result_sha256"]


def test_half_of_a_download_is_told_from_missing_pictures(tmp_path: Path) -> None:
    pictures = {f"p/{kind}{number}.png": tiny.png(tiny.scene(number)) for number in range(2) for kind in "ab"}
    data = tiny.tar(list(pictures.items()))
    parts = tiny.split(tmp_path, "p.tar.split", data, [len(data) // 2])
    tiny.table(
        tmp_path / "x.parquet",
        {
            "input_images": [["p/a0.png"], ["p/a1.png"]],
            "output_images": [["p/b0.png"], ["p/b1.png"]],
            "prompt": ["Add a ball.", "Add a box."],
        },
    )
    entry = {"layout": "imgedit", "path": str(tmp_path / "x.parquet"), "images": [str(tmp_path / "p.tar.split.*")]}
    parts[1].write_bytes(parts[1].read_bytes()[:900])
    assert set(tiny.imported(tmp_path / "run", entry).reasons) >= {"truncated_tar"}
    (tmp_path / "p.tar.split.002").write_bytes(parts[1].read_bytes())
    parts[1].unlink()
    with pytest.raises(ContainerError, match=r"p\.tar\.split: part 1 of the split tar is missing"):
        list_rows(tiny.config(entry).ingest)


def test_a_picture_too_large_is_refused_unread(tmp_path: Path) -> None:
    picture = tiny.png(tiny.scene(1))
    (tmp_path / "p.tar").write_bytes(tiny.tar([("p/a.png", picture), ("p/b.png", picture)]))
    tiny.table(
        tmp_path / "x.parquet", {"input_images": [["p/a.png"]], "output_images": [["p/b.png"]], "prompt": ["Add it."]}
    )
    entry = {"layout": "imgedit", "path": str(tmp_path / "x.parquet"), "images": [str(tmp_path / "p.tar")]}
    assert tiny.imported(tmp_path / "run", entry, ingest={"max_bytes": 1000}).reasons == ["too_many_bytes"]


def test_damaged_tables_are_rejects_and_wrong_columns_are_errors(tmp_path: Path) -> None:
    picture = tiny.png(tiny.scene(1))
    scaleedit(
        tmp_path / "a.parquet",
        [(1, "object_addition", "Add a ball.", picture, tiny.png(tiny.with_disc(tiny.scene(1))))],
    )
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    entry = {"layout": "scaleedit", "path": str(tmp_path / "*.parquet")}
    result = tiny.imported(tmp_path / "run", entry)
    assert list(result.rows) == ["Add a ball."]
    assert result.reasons == ["damaged_table"]

    with pytest.raises(ConfigError, match=r"a\.parquet: no column picture; there are: id, edit_task"):
        list_rows(tiny.config({**entry, "path": str(tmp_path / "a.parquet"), "columns": {"source": "picture"}}).ingest)
    (tmp_path / "p.tar").write_bytes(tiny.tar([]))
    with pytest.raises(ConfigError, match="has neither input_images"):
        list_rows(
            tiny.config(
                {"layout": "imgedit", "path": str(tmp_path / "a.parquet"), "images": [str(tmp_path / "p.tar")]}
            ).ingest
        )
    with pytest.raises(UsageError, match="no file matches"):
        list_rows(tiny.config({**entry, "path": str(tmp_path / "*.none")}).ingest)


def test_rows_are_listed_lazily_and_name_their_place(tmp_path: Path) -> None:
    picture = tiny.png(tiny.scene(1))
    for name in ("a", "b"):
        scaleedit(
            tmp_path / f"{name}.parquet", [(f"{name}{n}", "object_addition", "x", picture, picture) for n in range(3)]
        )
    rows = list_rows(tiny.config({"layout": "scaleedit", "path": str(tmp_path / "*.parquet")}).ingest)
    assert len(rows) == 6
    assert [row.uri for row in rows[2:4]] == [f"{tmp_path}/a.parquet#row=2", f"{tmp_path}/b.parquet#row=0"]
    assert list(rows) == rows[:] == [rows[number] for number in range(6)]
    assert len({row.id for row in rows}) == 6
    assert rows[-1] == rows[5]


def test_pictures_of_the_engine_are_kept_to_the_byte(tmp_path: Path) -> None:
    """A bare 4:4:4 JPEG on the grid is stored as it is; one with EXIF in the row makes all be encoded anew."""
    before, after = tiny.stored(tiny.scene(1)), tiny.stored(tiny.with_disc(tiny.scene(1)))
    exif = tiny.jpeg(tiny.with_disc(tiny.scene(1)), exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0")
    scaleedit(
        tmp_path / "a.parquet",
        [(1, "object_addition", "Add a ball.", before, after), (2, "object_addition", "Add a box.", before, exif)],
    )
    result = tiny.imported(
        tmp_path / "run", {"layout": "scaleedit", "path": str(tmp_path / "a.parquet"), "certificate": False}
    )
    assert (result.member("Add a ball.", "source"), result.member("Add a ball.", "result")) == (before, after)
    assert result.member("Add a box.", "result") != exif
    assert [row["gate_reencoded"] for row in result.rows.values()] == [False, True]
    assert b"Exif" not in result.member("Add a box.", "result")
    assert decode_jpeg(result.member("Add a box.", "source")).shape == (96, 128, 3)


def test_text_of_a_table_that_is_not_utf8_is_a_reject_and_rights_are_the_rows_own(tmp_path: Path) -> None:
    picture, after = tiny.png(tiny.scene(1)), tiny.png(tiny.with_disc(tiny.scene(1)))
    texts = [b"Add a ball.", b"Add a \xff ball.", b"Add a box."]
    offsets = pa.array([0, 11, 24, 34], pa.int32()).buffers()[1]
    broken = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"".join(texts)))
    columns = {
        "a": [picture] * 3,
        "b": [after] * 3,
        "t": broken,
        "l": ["CC0", None, "MI\nT"],
        "u": ["https://x.org/1"] * 3,
    }
    path = tiny.table(tmp_path / "x.parquet", columns, rows_per_group=3)
    names = {"source": "a", "result": "b", "instruction": "t", "licence": "l", "source_url": "u"}
    entry = {"layout": "parquet", "path": str(path), "type": "add", "columns": names, "licence": "CC-BY-4.0"}
    result = tiny.imported(tmp_path / "run", entry)
    assert result.reasons == ["damaged_table"]
    assert [(row["licence"], row["source_url"]) for row in result.rows.values()] == [
        ("CC0", "https://x.org/1"),
        ("MI T", "https://x.org/1"),
    ]


@pytest.mark.parametrize("name", ["imgedit", "omniedit", "parquet", "scaleedit", "webdataset"])
def test_the_packaged_configurations_are_valid(name: str) -> None:
    config = tiny.load_config(ImportConfig, f"data/import-{name}.yaml")
    assert [spec.layout for spec in config.ingest.datasets] == [name]
    assert config.verify.gates == ("geometry", "change", "direction")
