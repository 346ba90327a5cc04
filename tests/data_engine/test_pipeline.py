"""The whole engine as a user runs it: real photographs, real weights, real processes, and a look at every stored byte.

Two runs are shared by all tests: `two` with two workers, left alone; `one` with one worker, killed at random moments.
"""

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import photo_run
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from PIL import Image

from editfoundry.data_engine.audit import funnel, verify
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.taxonomy import TYPES

pytestmark = [pytest.mark.slow, pytest.mark.weights]
KILLS, MOST_COMMITS = 3, 50
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's configuration, or a skip that says which photographs are missing (a failure where they must be)."""
    if reason := photo_run.missing_photographs():
        if os.environ.get("EDITFOUNDRY_REQUIRE_WEIGHTS") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return photo_run.write_config(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def two(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two workers."""
    path = tmp_path_factory.mktemp("two") / "run"
    code, said = photo_run.data("run", "-c", config, "-o", path, "--workers", 2)
    assert code == 0, said
    return path


@pytest.fixture(scope="module")
def one(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one worker whose process group is killed three times; what was committed stays throughout."""
    path = tmp_path_factory.mktemp("one") / "run"
    rng = random.Random(5)
    committed: dict[str, bytes] = {}
    for commits in sorted(rng.sample(range(MOST_COMMITS), KILLS)):
        assert photo_run.killed(config, path, 1, commits, rng.uniform(0, 1.5))
        now = photo_run.records(path)
        assert committed.items() <= now.items()
        committed = now
    code, said = photo_run.data("run", "-c", config, "-o", path, "--workers", 1)
    assert code == 0, said
    assert committed.items() <= photo_run.records(path).items()
    return path


@pytest.fixture
def copy(two: Path, tmp_path: Path) -> Path:
    """A copy of the run with two workers, to be changed or damaged."""
    return Path(shutil.copytree(two, tmp_path / "run"))


def index(run: Path) -> Rows:
    rows: Rows = pq.read_table(run / "dataset/index.parquet").to_pylist()
    return rows


def stored(run: Path, row: dict[str, Any], member: str) -> bytes:
    """A member's bytes, read where the index says that they are."""
    with (run / "dataset" / row["shard"]).open("rb") as file:
        file.seek(row[f"offset_{member}"])
        return file.read(row[f"length_{member}"])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blocks(changed: Any) -> Any:
    """bool [H, W] → bool [H / 8, W / 8]: the JPEG blocks that hold any true pixel."""
    height, width = changed.shape
    return changed.reshape(height // 8, 8, width // 8, 8).any(axis=(1, 3))


def test_bytes_do_not_depend_on_workers_or_kills(one: Path, two: Path) -> None:
    assert photo_run.tree(one / "dataset") == photo_run.tree(two / "dataset")
    assert {Path(name).parts[1] for name in photo_run.records(one)} == {
        Path(name).parts[1] for name in photo_run.records(two)}
    assert verify(RunDir(one)) == []
    assert funnel(RunDir(one)).problems == ()
    keys = [row["key"] for row in index(one)]
    assert len(keys) == len(set(keys)) > photo_run.SHARDS


def test_both_workers_commit_interleaved(two: Path) -> None:
    committers = photo_run.committers(two)
    by_stage: dict[str, set[str]] = {}
    for _, stage, worker in committers:
        by_stage.setdefault(stage, set()).add(worker)
    assert sum(workers == {"worker0", "worker1"} for workers in by_stage.values()) > 4
    assert sum(before[2] != after[2] for before, after in pairwise(committers)) > 10


def test_every_source_is_accounted_for(two: Path) -> None:
    assert photo_run.data("funnel", two, "--check")[0] == 0
    assert photo_run.data("verify", two)[0] == 0
    rows = {row.stage: row for row in funnel(RunDir(two)).rows}
    assert (rows["ingest"].inputs, rows["ingest"].shards) == (photo_run.SHARDS, photo_run.SHARDS)
    assert rows["ingest"].rejects == {"truncated_image": 1}
    assert rows["filter"].rejects == {"exact_duplicate": 1}
    assert rows["emit"].outputs == len(index(two))


def test_local_edits_leave_every_block_outside_the_mask_alone(two: Path) -> None:
    local = [row for row in index(two) if TYPES[row["type"]].local]
    assert len(local) > 4
    assert {row["origin"] for row in local} == {"donor", "photograph"}
    for row in local:
        source, result, mask = (Image.open(io.BytesIO(stored(two, row, name))) for name in ("source", "result", "mask"))
        assert source.size == result.size == mask.size == (row["width"], row["height"])
        assert all(side % 16 == 0 for side in source.size)
        assert (source.format, result.format, mask.format) == ("JPEG", "JPEG", "PNG")
        changed = blocks((np.asarray(source) != np.asarray(result)).any(axis=2))
        touched = blocks(np.asarray(mask) > 0)
        assert not (changed & ~touched).any(), row["key"]
        assert changed.any(), row["key"]
        assert (row["outside_max"], row["outside_mean"]) == (0, 0)


def test_index_graph_and_members_agree(two: Path) -> None:
    rows = {row["key"]: row for row in index(two)}
    starts: dict[str, set[str]] = {}
    for key, row in rows.items():
        source, result = stored(two, row, "source"), stored(two, row, "result")
        assert (row["source_sha256"], row["result_sha256"]) == (sha256(source), sha256(result))
        assert source != result
        described = json.loads(stored(two, row, "json"))
        assert (described["key"], described["instruction"]) == (key, row["instruction"])
        assert described["parent"]["sha256"] == row["source_sha256"]
        if row["parent_key"] is None:
            starts.setdefault(row["conversation_id"], set()).add(row["source_sha256"])
            continue
        parent = rows[row["parent_key"]]
        assert parent["conversation_id"] == row["conversation_id"]
        assert parent["turn"] < row["turn"]
        assert parent["result_sha256"] == row["source_sha256"]
        assert stored(two, parent, "result") == source
    assert all(len(hashes) == 1 for hashes in starts.values())
    assert any(row["parent_key"] for row in rows.values())


def test_a_changed_template_runs_instruct_and_below_only(config: Path, copy: Path) -> None:
    before = photo_run.tree(copy / "stages")
    code, said = photo_run.data("run", "-c", config, "-o", copy, "--set", photo_run.NEW_TEMPLATE)
    assert code == 0, said
    after = photo_run.tree(copy / "stages")
    assert before.items() <= after.items()
    new = [Path(name) for name in after.keys() - before.keys() if "commits" in name]
    assert {path.parts[0].rpartition("-")[0] for path in new} == {"instruct", "render", "verify", "emit"}
    assert len({path.parts[0] for path in new}) == 4
    assert len(new) == 4 * photo_run.SHARDS
    styled = [row["instruction"] for row in index(copy) if row["type"] == "style"]
    assert styled == ["Paint this photograph again in the style of Van Gogh's Starry Night."] * len(styled) != []


def test_damage_is_found_and_repaired_to_the_same_bytes(two: Path, copy: Path) -> None:
    broken = sorted(copy.glob("stages/render-*/shards/*.tar"))[0]
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    missing = next(copy.glob("stages/segment-*/commits/00003.json"))
    missing.unlink()
    tar = sorted((copy / "dataset").glob("*.tar"))[0]
    extra = copy / "dataset" / "train-000099.tar"
    shutil.copy(tar, extra)

    found = {(finding.kind, finding.path) for finding in verify(RunDir(copy))}
    assert {("changed_file", str(broken.relative_to(copy))), ("missing_shard", str(missing.relative_to(copy))),
            ("extra_file", str(extra.relative_to(copy)))} <= found
    assert photo_run.data("verify", copy)[0] == 1

    code, said = photo_run.data("repair", copy)
    assert code == 0, said
    assert photo_run.data("verify", copy)[0] == 0
    assert photo_run.tree(copy / "dataset") == photo_run.tree(two / "dataset")
    before, after = photo_run.records(two), photo_run.records(copy)
    remade = {name for name in before if before[name] != after[name]}
    assert remade == {str(missing.relative_to(copy)),
                      f"{broken.parents[1].relative_to(copy)}/commits/{broken.name[:5]}.json"}
    files = {name: data for name, data in photo_run.tree(two / "stages").items() if "/shards/" in name}
    assert files.items() <= photo_run.tree(copy / "stages").items()


def traces(run: Path, needles: dict[str, bytes]) -> set[str]:
    """Which needles occur in any file of the run, as stored or, for tables, decompressed."""
    found = set()
    for path in run.rglob("*"):
        if path.is_file():
            texts = [path.read_bytes()]
            if path.suffix == ".parquet":
                texts.append(repr(pq.read_table(path).to_pylist()).encode())
            found |= {name for name, needle in needles.items() if any(needle in text for text in texts)}
    return found


def test_forget_leaves_no_trace_of_a_photograph_that_was_a_donor_too(config: Path, copy: Path) -> None:
    photograph = (config.parent / "photographs" / photo_run.BACKGROUND).read_bytes()
    digest = sha256(photograph)
    rows = index(copy)
    assert any(row["photograph_sha256"] == digest for row in rows)
    assert any(digest in row["donors"] and row["photograph_sha256"] != digest for row in rows)
    kept = {row["key"]: row["result_sha256"] for row in rows
            if digest not in (row["photograph_sha256"], *row["donors"])}
    middle = len(photograph) // 2
    needles = {"hash": digest.encode(), "id": digest[:16].encode(), "name": photo_run.BACKGROUND.encode(),
               "name of its copy": photo_run.COPY.encode(), "description": b"single tree on a green meadow",
               "pixels": photograph[middle:middle + 48], "end": photograph[-48:]}
    assert traces(copy, needles) == set(needles)

    assert photo_run.data("forget", copy, "--sha256", digest)[0] == 0

    assert traces(copy, needles) == set()
    assert photo_run.data("verify", copy)[0] == 0
    assert photo_run.data("funnel", copy, "--check")[0] == 0
    assert {row["key"]: row["result_sha256"] for row in index(copy)} == kept
    assert kept


def joined(folder: Path) -> dict[str, bytes]:
    """Members of every split tar of a folder, its parts put together."""
    members = {}
    for name in sorted({path.name.rpartition(".")[0] for path in folder.iterdir()}):
        data = b"".join(path.read_bytes() for path in sorted(folder.glob(f"{name}.*")))
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members.update({info.name: archive.extractfile(info).read() for info in archive})  # type: ignore[union-attr]
    return members


def test_imgedit_export_loads_offline_and_its_paths_resolve(two: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    out = tmp_path / "out"
    assert photo_run.data("export", two, "--format", "imgedit", "--split-bytes", 40_000, out)[0] == 0
    assert any(path.name.endswith(".split.001") for path in out.rglob("*"))
    edges = {(row["source_sha256"], row["result_sha256"], row["instruction"]): row for row in index(two)}
    exported = 0
    for folder in ("single_turn", "multi_turn"):
        images = joined(out / folder / "images")
        rows = datasets.load_dataset("parquet", data_files=sorted(map(str, (out / folder).glob("parquet/*.parquet"))),
                                     split="train", cache_dir=str(tmp_path / "cache"))
        turns = list(rows) if folder == "single_turn" else [turn for row in rows for turn in row["data"]]
        assert turns
        for turn in turns:
            source, result = images[turn["input_images"][0]], images[turn["output_images"][0]]
            row = edges[sha256(source), sha256(result), turn["prompt"]]
            assert Image.open(io.BytesIO(result)).size == (row["width"], row["height"])
            exported += 1
    assert exported == len(edges)


def test_webdataset_reads_the_shards(two: Path) -> None:
    urls = sorted(map(str, (two / "dataset").glob("*.tar")))
    samples = {sample["__key__"]: sample for sample in wds.WebDataset(urls, shardshuffle=False)}
    rows = {row["key"]: row for row in index(two)}
    assert samples.keys() == rows.keys()
    assert all(sha256(samples[key]["result.jpg"]) == row["result_sha256"] for key, row in rows.items())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, or a skip that says why there cannot be one."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_one_line_and_the_run_resumes(config: Path, two: Path, disk: Path) -> None:
    """All above emit is there already. First the disk is full at once, then while emit writes, then there is room."""
    run = Path(shutil.copytree(two, disk / "run", ignore=shutil.ignore_patterns("dataset", "emit-*")))
    ballast = disk / "ballast"
    for free in (0, 64 * 1024):
        ballast.unlink(missing_ok=True)
        room = os.statvfs(disk)
        ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - free))
        committed = photo_run.records(run)
        code, said = photo_run.data("run", "-c", config, "-o", run)
        assert code == 1
        errors = [line for line in said.splitlines() if not line.startswith("emit: ")]
        assert len(errors) == 1, said
        assert "No space left on device; committed shards are intact" in errors[0]
        assert committed.items() <= photo_run.records(run).items()
    ballast.unlink()
    code, said = photo_run.data("run", "-c", config, "-o", run)
    assert code == 0, said
    assert photo_run.tree(run / "dataset") == photo_run.tree(two / "dataset")
