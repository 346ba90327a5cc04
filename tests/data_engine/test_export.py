import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import toy_engine as toy
import yaml
from PIL import Image

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import sha256
from editfoundry.data_engine.export import SplitTar, export, region_json
from editfoundry.data_engine.records import Caption, Region, Source
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import read_table


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    base = tmp_path_factory.mktemp("export")
    toy.run_here(toy.write_sources(base / "src", 10, {2: "odd"}), base / "run")
    return RunDir(base / "run")


def load(files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    return datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))


def joined(folder: Path) -> dict[str, bytes]:
    """Members of every split tar of a folder, its parts put together."""
    members = {}
    for name in sorted({path.name.rpartition(".")[0] for path in folder.iterdir()}):
        data = b"".join(path.read_bytes() for path in sorted(folder.glob(f"{name}.*")))
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members.update({info.name: archive.extractfile(info).read() for info in archive})  # type: ignore[union-attr]
    return members


def index(run: RunDir) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in read_table(run.dataset / "index.parquet")}


def test_imgedit_layout_loads_and_its_paths_resolve(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    ) -> None:
    out = export(run, "imgedit", tmp_path / "out", split_bytes=5000)
    edges = index(run)
    by_prompt = {(edge["source_sha256"], edge["result_sha256"]): edge for edge in edges.values()}

    single = load(sorted(map(str, (out / "single_turn/parquet").glob("*.parquet"))), tmp_path, monkeypatch)
    multi = load(sorted(map(str, (out / "multi_turn/parquet").glob("*.parquet"))), tmp_path, monkeypatch)
    assert single.column_names == ["input_images", "output_images", "prompt"]
    assert multi.column_names == ["data"]
    assert (len(single), len(multi)) == (9, 9)
    assert max(path.stat().st_size for path in (out / "single_turn/images").iterdir()) == 5000
    assert len(list((out / "single_turn/images").glob("train-000000.tar.split.*"))) > 1

    for folder, turns in (("single_turn", list(single)), ("multi_turn", [t for row in multi for t in row["data"]])):
        images = joined(out / folder / "images")
        for turn in turns:
            source, result = images[turn["input_images"][0]], images[turn["output_images"][0]]
            assert by_prompt[sha256(source), sha256(result)]["instruction"] == turn["prompt"]
            assert Image.open(io.BytesIO(source)).size == (16, 16)
            mask = turn["input_images"][0].replace(".source.jpg", ".mask.png")
            assert Image.open(io.BytesIO(images[mask])).mode == "L"
        assert len(images) == 3 * len(turns)
    images = joined(out / "multi_turn/images")
    for row in multi:
        first, second, third = row["data"]
        starts = {images[turn["input_images"][0]] for turn in (second, third)}
        assert starts == {images[first["output_images"][0]]}


def test_parquet_loads_with_decoded_images(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = export(run, "parquet", tmp_path / "out")
    card = yaml.safe_load((out / "README.md").read_text().split("---")[1])
    assert [config["config_name"] for config in card["configs"]] == ["multi_turn", "single_turn"]
    assert "- CC0-1.0: 36 edits" in (out / "README.md").read_text()
    declared = {config["config_name"]: sorted(str(path) for entry in config["data_files"]
                                              for path in out.glob(entry["path"])) for config in card["configs"]}
    assert sum(map(len, declared.values())) == len(list(out.rglob("*.parquet")))

    edges = index(run)
    single = load(declared["single_turn"], tmp_path, monkeypatch)
    assert len(single) == 9
    for row in single:
        assert row["instruction"] == edges[row["key"]]["instruction"]
        assert (row["source"].size, row["mask"].mode, row["reference"]) == ((16, 16), "L", None)
        assert json.loads(row["details"])["key"] == row["key"]
    multi = load(declared["multi_turn"], tmp_path, monkeypatch)
    assert len(multi) == 9
    for row in multi:
        assert [turn["turn"] for turn in row["turns"]] == [1, 2, 3]
        assert [turn["parent_key"] for turn in row["turns"]] == [None, *[f"{row['conversation_id']}_t1"] * 2]
        assert row["turns"][2]["result"].size == (16, 16)


def test_bad_requests_are_refused(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose imgedit or parquet"):
        export(run, "webp", tmp_path / "out")
    with pytest.raises(UsageError, match="not an empty folder"):
        export(run, "imgedit", run.path)
    with pytest.raises(UsageError, match="has no dataset yet"):
        export(RunDir(tmp_path), "imgedit", tmp_path / "out")


@pytest.mark.parametrize("part", [512, 700, 10_000])
def test_split_tar_parts_join_to_the_tar(tmp_path: Path, part: int) -> None:
    tar = SplitTar(tmp_path, "a.tar.split", part)
    members = {"a/1.jpg": b"1" * 900, "a/2.jpg": b""}
    for name, data in members.items():
        tar.add(name, data)
    tar.close()
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert set(sizes[:-1]) <= {part}
    assert joined(tmp_path) == members


def test_region_json_has_the_released_fields() -> None:
    mask = {"size": [10, 20], "counts": "abc"}
    source = Source(id="s", sha256="0", uri="a.jpg", grid=(20, 10), scores={"aesthetic": 5.5},
                    caption=Caption(text="A cat on grass.", summary="A cat.", objects=("cat",), backgrounds=("grass",)),
                    regions=(Region(id="r1", label="cat", kind="object", box=(1, 2, 3, 4), detector="ssd",
                                    detector_score=0.5, scorer_score=0.7, mask=mask),
                             Region(id="r2", label="grass", kind="background", box=(0, 0, 20, 10), detector="ssd",
                                    detector_score=0.25)))
    assert region_json(source) == {
        "path": "a.jpg", "cap": ["A cat on grass."], "aes": 5.5, "resolution": {"height": 10, "width": 20},
        "tags": {"background": ["grass"], "object": ["cat"], "summary": "A cat."},
        "segmentation": {
            "background": [{"class_name": "grass", "bbox": [0, 0, 20, 10], "mask": None, "score": 0.25,
                            "clip_score": None, "aes_score": None}],
            "object": [{"class_name": "cat", "bbox": [1, 2, 3, 4], "mask": "abc", "score": 0.5, "clip_score": 0.7,
                        "aes_score": None}],
            "box_format": "xyxy"},
        "bg_count": {"grass": 1}, "obj_count": {"cat": 1}}
