"""Finds, over the whole run, photographs that show the same thing as another or as a benchmark's source image."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from editfoundry.core.config import Config
from editfoundry.core.errors import ConfigError, EditFoundryError, ImageError
from editfoundry.core.hashing import sha256
from editfoundry.core.images import decode, perceptual_hash
from editfoundry.data_engine.readers.storage import expand, is_folder, join, names, open_input
from editfoundry.data_engine.records import Record, Source
from editfoundry.data_engine.stages.base import Artifacts, Barrier, Item

if TYPE_CHECKING:
    from editfoundry.data_engine.config import RunConfig

EMBEDDING = "embedding"
"""Tar member of the filter stage: the photograph's embedding, float16, L2-normalised."""
EXACT_UP_TO = 200_000
"""Photographs up to which every pair is compared; beyond, the 16 nearest of about √n cells are (FAISS IVF)."""
PROBES = 16
HASH_SIDE = 256
MAX_BYTES = 64 * 1024 * 1024
NO_IMAGE = ("not_an_image", "empty_file")
"""Reasons of the prompt files and licences that lie beside a benchmark's images."""
Float = NDArray[np.float32]


class SimilarConfig(Config):
    """near: cosine similarity of embeddings from which two photographs count as one; None: they are not compared.

    benchmarks: files, folders or globs of the source images of benchmarks; a photograph that is one of them, by
    embedding (contaminated) or perceptual hash (contaminated_bits of 64 that may differ), is rejected.
    """

    near: float | None = Field(default=None, gt=0, le=1)
    benchmarks: tuple[str, ...] = ()
    contaminated: float = Field(default=0.95, gt=0, le=1)
    contaminated_bits: int = Field(default=6, ge=0, le=64)

    @property
    def wanted(self) -> bool:
        """Whether there is anything to compare, so that the filter stage has to embed."""
        return self.near is not None or bool(self.benchmarks)


class Likeness(Record):
    """A source that may not go on, and why. `other`: address of the photograph kept, or the benchmark's file."""

    id: str
    uri: str
    sha256: str
    reason: Literal["similar_photograph", "benchmark_contamination"]
    other: str
    other_sha256: str
    similarity: float


class Similar(Barrier):
    """Of photographs that are near each other (nearness chains) the one with the most pixels, then the smallest uri, is

    kept. Frame pairs of one video resemble each other by design: they are compared with benchmarks only.
    """

    name: ClassVar[str] = "similar"
    row: ClassVar[type[Record]] = Likeness
    reads: ClassVar[tuple[str, ...]] = ("filter",)
    roles: ClassVar[tuple[str, ...]] = ("image_embedder",)
    config: SimilarConfig

    @classmethod
    def needs(cls, config: "RunConfig") -> tuple[str, ...]:
        """The embedder, only for the benchmarks' images; the run's own are embedded by the filter stage."""
        return cls.roles if config.similar.benchmarks else ()

    def settings(self) -> dict[str, Any]:
        """The section, and the content of every benchmark image: other images are another guard."""
        return {**super().settings(), "contents": [digest for _, digest, _ in self._benchmarks]}

    def setup(self, artifacts: Artifacts) -> None:
        super().setup(artifacts)
        self._read = artifacts.blob

    def gather(self, rows: Callable[[str], Iterator[tuple[int, dict[str, Any]]]]) -> Iterator[Item]:
        if not self.config.wanted:
            return
        located = [(shard, Source.model_validate(row)) for shard, row in rows("filter")]
        located.sort(key=lambda pair: (pair[1].id, pair[1].uri))
        sources = [source for _, source in located]
        if not sources:
            return
        vectors = np.stack([self._vector(shard, source) for shard, source in located])
        found = {row.uri: row for row in self._contaminated(sources, vectors)}
        clean = [index for index, source in enumerate(sources) if source.uri not in found]
        for row in self._near(sources, vectors, [i for i in clean if sources[i].kind == "photograph"]):
            found[row.uri] = row
        yield from (Item(found[source.uri]) for source in sources if source.uri in found)

    def _vector(self, shard: int, source: Source) -> Float:
        data = self._read("filter", shard, source.id, EMBEDDING)
        return np.frombuffer(data, np.float16).astype(np.float32)

    def _contaminated(self, sources: Sequence[Source], vectors: Float) -> Iterator[Likeness]:
        if not self._benchmarks:
            return
        images = [decode(data, target=HASH_SIDE) for _, _, data in self._benchmarks]
        theirs = np.asarray(self.models["image_embedder"].embed(images), np.float32)
        hashes = np.array([int(perceptual_hash(image), 16) for image in images], np.uint64)
        for source, vector in zip(sources, vectors, strict=True):
            similarity = theirs @ vector
            best = int(similarity.argmax())
            bits = np.bitwise_count(hashes ^ np.uint64(int(source.phash or "0", 16)))
            closest = int(bits.argmin())
            if similarity[best] < self.config.contaminated:
                best = closest
                if not source.phash or bits[closest] > self.config.contaminated_bits:
                    continue
            path, digest, _ = self._benchmarks[best]
            yield _likeness(source, "benchmark_contamination", path, digest, float(similarity[best]))

    def _near(self, sources: Sequence[Source], vectors: Float, indices: Sequence[int]) -> Iterator[Likeness]:
        if self.config.near is None or len(indices) < 2:
            return
        chosen = vectors[np.asarray(indices)]
        first, second = near_pairs(chosen, self.config.near)
        size = len(indices)
        graph = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(size, size))
        _, label = connected_components(graph, directed=False)
        order = np.argsort(label, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(label[order])) + 1):
            members: list[int] = group.tolist()
            keeper = min(members, key=lambda i: _rank(sources[indices[i]]))
            kept = sources[indices[keeper]]
            for member in members:
                if member != keeper:
                    similarity = float(chosen[member] @ chosen[keeper])
                    yield _likeness(sources[indices[member]], "similar_photograph", kept.uri, kept.sha256, similarity)

    @cached_property
    def _benchmarks(self) -> list[tuple[str, str, bytes]]:
        """(path, content hash, bytes) of every benchmark image, by content.

        What is no image is passed over. Raises ConfigError for an image that cannot be read: it would go unguarded.
        """
        found: dict[str, tuple[str, str, bytes]] = {}
        for url in (file for path in self.config.benchmarks for root in expand(path) for file in _files(root)):
            with open_input(url) as file:
                data = file.read(MAX_BYTES + 1)
            try:
                decode(data, target=HASH_SIDE)
            except ImageError as error:
                if error.reason in NO_IMAGE:
                    continue
                raise ConfigError(f"similar.benchmarks: {url}: {error}; mend the image, or take it out") from error
            if len(data) > MAX_BYTES:
                raise ConfigError(f"similar.benchmarks: {url}: larger than {MAX_BYTES} bytes; take it out")
            found.setdefault(sha256(data), (url, sha256(data), data))
        if self.config.benchmarks and not found:
            raise ConfigError(f"similar.benchmarks: no image is in {', '.join(self.config.benchmarks)}")
        return [found[digest] for digest in sorted(found)]


def _files(url: str) -> Iterator[str]:
    """The file itself, or every file below a folder."""
    if not is_folder(url):
        yield url
        return
    for name in names(url):
        yield from _files(join(url, name))


def near_pairs(vectors: Float, near: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Index pairs (i < j) of L2-normalised rows, float32 [N, D], whose cosine similarity is at least `near`.

    Exact up to 200,000 rows; beyond, pairs that fall into cells far from each other can be missed.
    """
    try:
        import faiss
    except ImportError as error:
        raise EditFoundryError("similar.near needs FAISS: pip install 'editfoundry[full]'") from error
    faiss.omp_set_num_threads(1)
    count, width = vectors.shape
    index: Any
    if count <= EXACT_UP_TO:
        index = faiss.IndexFlatIP(width)
    else:
        cells = int(count**0.5)
        index = faiss.index_factory(width, f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
        index.train(np.ascontiguousarray(vectors[:: max(1, count // (64 * cells))]))
        index.nprobe = PROBES
    index.add(np.ascontiguousarray(vectors))
    # range_search keeps what is strictly above its threshold
    limits, _, neighbours = index.range_search(np.ascontiguousarray(vectors), float(np.nextafter(np.float32(near), -1)))
    rows = np.repeat(np.arange(count), np.diff(limits.astype(np.int64)))
    ordered = rows < neighbours
    return rows[ordered], neighbours[ordered]


def _rank(source: Source) -> tuple[int, str]:
    return -source.width * source.height, source.uri


def _likeness(source: Source, reason: Any, other: str, other_sha256: str, similarity: float) -> Likeness:
    return Likeness(
        id=source.id,
        uri=source.uri,
        sha256=source.sha256,
        reason=reason,
        other=other,
        other_sha256=other_sha256,
        similarity=round(similarity, 4),
    )
