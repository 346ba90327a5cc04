"""Ingest to emit with the full stack on tiny checkpoints: every type and conversation, twice the same bytes, and noise

refused under production thresholds.
"""

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import full_run
import pyarrow.parquet as pq
import pytest
from chat_server import serve
from photo_run import tree
from source_stages import Committed
from source_stages import run as drive

from editfoundry.core.config import load_config
from editfoundry.data_engine import pixels
from editfoundry.data_engine.audit import funnel, verify
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.runner import run
from editfoundry.data_engine.sources import list_sources
from editfoundry.data_engine.stages.base import Item
from editfoundry.data_engine.stages.filter import Filter
from editfoundry.data_engine.stages.ingest import Ingest
from editfoundry.data_engine.taxonomy import CONVERSATIONS, FAMILIES, TYPES

pytestmark = [pytest.mark.slow, pytest.mark.weights]


@dataclass
class Made:
    """Two runs of one configuration, by two workers and by one, and the first one's dataset files."""

    folder: Path
    weights: dict[str, Path]
    url: str
    first: RunDir
    second: RunDir

    def rows(self, of: RunDir) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(of.dataset / "index.parquet").to_pylist()
        return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("full")
    weights = full_run.checkpoints(folder / "weights")
    with serve(full_run.HANDLER) as server:
        (folder / "permissive").mkdir()
        config = load_config(RunConfig, full_run.write_config(folder / "permissive", weights, server.url))
        for name, workers in (("two", 2), ("one", 1)):
            run(config, folder / name, workers=workers)
        yield Made(folder, weights, server.url, RunDir(folder / "two"), RunDir(folder / "one"))


def test_every_type_and_every_conversation_is_emitted(made: Made) -> None:
    rows = made.rows(made.first)
    singles = {row["type"] for row in rows if row["conversation_kind"] == "single"}
    assert singles == set(FAMILIES)
    turns = Counter(row["conversation_kind"] for row in rows if row["conversation_kind"] != "single")
    assert set(turns) == set(CONVERSATIONS)
    assert {row["stack"] for row in rows} == {"full"}
    assert {row["origin"] for row in rows} == {"photograph", "generated", "video"}


def test_permissive_thresholds_reject_nothing_and_every_source_is_accounted_for(made: Made) -> None:
    accounts = {row.stage: row for row in funnel(made.first).rows}
    assert funnel(made.first).problems == ()
    assert accounts["render"].rejects == {} and accounts["verify"].rejects == {}
    assert accounts["emit"].inputs == accounts["instruct"].outputs
    assert not verify(made.first)


def test_two_workers_and_one_give_the_same_bytes(made: Made) -> None:
    assert tree(made.first.dataset) == tree(made.second.dataset)


def test_local_edits_touch_nothing_outside_their_masks(made: Made) -> None:
    local = [row for row in made.rows(made.first) if TYPES[row["type"]].local]
    assert local and all(row["outside_max"] == 0 and 0 < row["mask_area"] < 1 for row in local)


def test_conversations_start_where_they_say(made: Made) -> None:
    rows = {row["key"]: row for row in made.rows(made.first)}
    for row in rows.values():
        if row["parent_key"]:
            assert rows[row["parent_key"]]["result_sha256"] == row["source_sha256"]
    back = [r for r in rows.values() if r["conversation_kind"] == "version_backtracking" and r["turn"] == 3]
    assert back and all(rows[row["parent_key"]]["turn"] == 1 for row in back)


def test_words_come_from_the_writer_and_the_best_of_two_from_the_judge(made: Made) -> None:
    described = [json.loads(data) for name, data in _members(made.first) if name.endswith(".json")]
    assert {one["worded_by"] for one in described} == {"writer"}
    replaced = [one for one in described if one["type"] == "replace" and one["conversation"]["kind"] == "single"]
    assert replaced and all(one["render"]["candidates"] == 2 for one in replaced)
    assert all(one["gates"]["judge_following"] == 5 for one in described)


def test_production_thresholds_refuse_noise_and_say_why(made: Made) -> None:
    (made.folder / "production").mkdir()
    path = full_run.write_config(made.folder / "production", made.weights, made.url, permissive=False)
    settings = [f"ingest.sources={json.dumps(_sources(made))}", "render.max_uneven_ground=1.0",
                f"catalogue.styles.0.path={made.folder}/permissive/style.png"]  # fmt: skip
    run(load_config(RunConfig, path, settings), made.second.path, workers=2)
    stores = Counter(store.stage for store in made.second.all_stores())
    assert [stage for stage, count in stores.items() if count > 1] == ["emit", "verify"]
    (checked,) = [row for row in funnel(made.second).rows if row.stage == "verify"]
    assert checked.inputs == checked.accepted + checked.rejected
    assert {"text_mismatch"} <= set(checked.rejects), checked.rejects
    assert not [row for row in made.rows(made.second) if row["origin"] == "generated" and row["type"] == "replace"]
    assert funnel(made.second).problems == ()


def test_each_photograph_is_decoded_once_for_all_models_of_a_stage(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(RunConfig, made.folder / "permissive/config.yaml")
    listed = [source for source in list_sources(config.ingest) if source.uri.endswith(".png")]
    items, _ = drive(Ingest(config), [Item(source) for source in listed])
    decoded: list[int] = []
    decode = pixels.decode
    monkeypatch.setattr(pixels, "decode", lambda data, **how: decoded.append(len(data)) or decode(data, **how))
    stage = Filter(config)
    assert set(stage.models) == {"safety", "quality", "aesthetic", "image_embedder"}
    kept, _ = drive(stage, items, Committed())
    assert len(kept) == len(items) == len(decoded) == 4


def test_one_line_swaps_one_embedded_model_and_the_dataset_says_mixed(made: Made, tmp_path: Path) -> None:
    settings = {
        "shard_size": 4,
        "grid_area": 192 * 192,
        "ingest": {"sources": [{"path": str(made.folder / "permissive/sources/coffee.png")}]},
        "detect": {"read_text": False},
        "catalogue": {"styles": [{"path": str(made.folder / "permissive/style.png"), "name": "an orange picture"}]},
        "instruct": {"donor_rates": {}, "photograph_rates": {"style": 1}, "conversation_rates": {}},
        "verify": {"thresholds": full_run.PERMISSIVE["verify"]["thresholds"]},
        "val_fraction": 0.0,
    }
    swap = {"segmenter": {"name": "sam2", "checkpoint": str(made.weights["segmenter"]), "device": "cpu"}}
    plain, swapped = RunConfig.model_validate(settings), RunConfig.model_validate({**settings, "models": swap})
    assert (plain.made_by, swapped.made_by) == ("embedded", "mixed")
    assert plain.shared() == swapped.shared(), "stages that do not use the model keep their fingerprints"
    run(swapped, tmp_path / "run")
    assert {row["stack"] for row in pq.read_table(tmp_path / "run/dataset/index.parquet").to_pylist()} == {"mixed"}


def _sources(made: Made) -> list[dict[str, Any]]:
    return [spec.model_dump(mode="json", exclude_defaults=True)
            for spec in load_config(RunConfig, made.folder / "permissive/config.yaml").ingest.sources]  # fmt: skip


def _members(of: RunDir) -> Iterator[tuple[str, bytes]]:
    for path in sorted(of.dataset.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file is not None:
                    yield member.name, file.read()
