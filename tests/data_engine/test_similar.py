"""Photographs that show the same thing count once over the whole run, and none may be a benchmark's."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from source_stages import Committed, config

from editfoundry.core.errors import ConfigError
from editfoundry.core.hashing import sha256
from editfoundry.core.images import perceptual_hash
from editfoundry.data_engine.records import Source
from editfoundry.data_engine.stages.base import Item
from editfoundry.data_engine.stages.caption import Caption
from editfoundry.data_engine.stages.filter import Filter
from editfoundry.data_engine.stages.similar import EMBEDDING, Similar, near_pairs

SIDE = 96


class Thirds:
    """A real, if simple, ImageEmbedder: mean colours of a 3x3 raster around mid grey."""

    name = "thirds"

    def load(self) -> None:
        """Nothing to load."""

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        rasters = [
            np.asarray(Image.fromarray(image).resize((3, 3), Image.Resampling.BOX), np.float32) for image in images
        ]
        flat = np.stack([raster.ravel() - 127 for raster in rasters])
        return (flat / np.linalg.norm(flat, axis=1, keepdims=True)).astype(np.float32)


def picture(seed: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def source(name: str, image: np.ndarray, **changes: Any) -> tuple[Source, np.ndarray]:
    digest = sha256(name)
    record = Source(id=digest[:16], sha256=digest, uri=name, width=SIDE, height=SIDE, phash=perceptual_hash(image))
    return record.model_copy(update=changes), image


class Embedded(Committed):
    """Filter's tar: embeddings of the pictures by source id."""

    def __init__(self, sources: Sequence[tuple[Source, np.ndarray]]) -> None:
        super().__init__()
        self.vectors = {s.id: Thirds().embed([image])[0].astype(np.float16).tobytes() for s, image in sources}

    def blob(self, stage: str, shard: int, record_id: str, member: str) -> bytes:
        assert (stage, member) == ("filter", EMBEDDING)
        return self.vectors[record_id]


def compared(sources: Sequence[tuple[Source, np.ndarray]], **settings: Any) -> dict[str, dict[str, Any]]:
    stage = Similar(config(".", similar=settings))
    stage.models = {"image_embedder": Thirds()} if stage.models else {}
    stage.setup(Embedded(sources))
    rows: Iterator[tuple[int, dict[str, Any]]] = iter([(0, s.model_dump(mode="json")) for s, _ in sources])
    return {item.record.uri: item.record.model_dump() for item in stage.gather(lambda _: rows)}


def test_of_similar_photographs_the_largest_is_kept() -> None:
    near = (picture(1).astype(int) + 3).clip(0, 255).astype(np.uint8)
    sources = [source("a", picture(1)), source("b", near, width=2 * SIDE), source("c", picture(2))]
    found = compared(sources, near=0.99)
    assert list(found) == ["a"]
    assert (found["a"]["reason"], found["a"]["other"]) == ("similar_photograph", "b")
    assert found["a"]["similarity"] > 0.99


def test_frame_pairs_of_one_video_are_not_compared() -> None:
    sources = [source("a", picture(1), kind="frames"), source("b", picture(1), kind="frames")]
    assert compared(sources, near=0.9) == {}


def test_a_benchmarks_image_is_found_by_embedding_and_by_hash(tmp_path: Path) -> None:
    Image.fromarray(picture(1)).save(tmp_path / "bench.png")
    (tmp_path / "prompts.json").write_text("{}")
    darker = (picture(1) * 0.8).astype(np.uint8)
    sources = [source("same", picture(1)), source("darker", darker), source("other", picture(2))]
    by_embedding = compared(sources, benchmarks=[str(tmp_path)], contaminated_bits=0)
    assert "same" in by_embedding and "other" not in by_embedding
    by_hash = compared(sources, benchmarks=[str(tmp_path)], contaminated=1.0)
    assert set(by_hash) == {"same", "darker"}
    assert {row["reason"] for row in by_hash.values()} == {"benchmark_contamination"}
    assert all(row["other"].endswith("bench.png") for row in by_hash.values())


def test_other_benchmark_images_are_another_fingerprint(tmp_path: Path) -> None:
    Image.fromarray(picture(1)).save(tmp_path / "bench.png")
    first = Similar(config(".", similar={"benchmarks": [str(tmp_path)]})).settings()
    Image.fromarray(picture(2)).save(tmp_path / "bench.png")
    assert Similar(config(".", similar={"benchmarks": [str(tmp_path)]})).settings() != first


def test_a_benchmark_folder_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text("{}")
    with pytest.raises(ConfigError, match="no image is in"):
        Similar(config(".", similar={"benchmarks": [str(tmp_path)]})).settings()


def test_a_damaged_benchmark_image_is_an_error_not_a_gap_in_the_guard(tmp_path: Path) -> None:
    Image.fromarray(picture(1)).save(tmp_path / "bench.png")
    whole = (tmp_path / "bench.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"cut\.png.*mend the image"):
        Similar(config(".", similar={"benchmarks": [str(tmp_path)]})).settings()


def test_models_are_loaded_only_where_photographs_are_compared() -> None:
    assert Similar.needs(config(".")) == ()
    assert "image_embedder" not in Filter.needs(config("."))
    assert "image_embedder" in Filter.needs(config(".", similar={"near": 0.9}))
    assert compared([source("a", picture(1)), source("b", picture(1))]) == {}


def test_what_is_too_similar_ends_before_it_is_captioned() -> None:
    record, _ = source("a", picture(1))
    row = compared([source("a", picture(1)), source("b", picture(1))], near=0.99)["b"]
    stage = Caption(config("."))
    stage.models = {}
    stage.setup(Committed([row]))
    other = record.model_copy(update={"uri": "b"})
    ((reject,),) = stage.process([stage.prepare(Item(other))])
    assert (reject.reason, reject.stage) == ("similar_photograph", "caption")


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.floats(0.2, 0.95))
def test_near_pairs_are_those_of_brute_force(seed: int, count: int, near: float) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    products = vectors @ vectors.T
    first, second = near_pairs(vectors, near)
    found = set(zip(first.tolist(), second.tolist(), strict=True))
    sure = {(i, j) for i, j in np.argwhere(products >= near + 1e-5).tolist() if i < j}
    possible = {(i, j) for i, j in np.argwhere(products >= near - 1e-5).tolist() if i < j}
    assert sure <= found <= possible


def test_very_many_photographs_are_searched_by_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(3000, 32)).astype(np.float32)
    vectors[2000:2050] = vectors[:50] + 0.01 * vectors[50:100]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    exact = near_pairs(vectors, 0.99)
    monkeypatch.setattr("editfoundry.data_engine.stages.similar.EXACT_UP_TO", 100)
    found = near_pairs(vectors, 0.99)
    assert len(exact[0]) == 50
    assert set(zip(*map(np.ndarray.tolist, found), strict=True)) == set(
        zip(*map(np.ndarray.tolist, exact), strict=True)
    )
    assert all(np.array_equal(a, b) for a, b in zip(near_pairs(vectors, 0.99), found, strict=True))
