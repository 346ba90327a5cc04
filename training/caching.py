"""Build a feature cache: what it will cost and from when it pays, then the cache. Ranks share the work:

accelerate launch … -m editfoundry.training.caching CONFIG -o DIR
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator

from editfoundry.core.config import load_config
from editfoundry.core.hashing import fingerprint
from editfoundry.core.progress import progress
from editfoundry.models.editor.encoders import Encoders
from editfoundry.training import entry
from editfoundry.training.config import TrainConfig
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.cache import WITH_TEXT, build_cache, cache_keys, claim, encoded, packed, read_entry
from editfoundry.training.data.index import build_index
from editfoundry.training.data.pictures import PictureReader
from editfoundry.training.loading import open_editor
from editfoundry.training.parameters import precision

MEASURED = 8


@dataclass(frozen=True)
class Estimate:
    """What a cache costs. Seconds are per sample, in one process: to encode it fresh, to encode and store what the

    cache has of it, and to read that back.
    """

    samples: int
    sample_bytes: float
    fresh: float
    build: float
    read: float

    @property
    def break_even(self) -> float:
        """Epochs after which the cache has saved the time it cost; infinite if reading takes as long as encoding."""
        saved = self.fresh - self.read
        return self.build / saved if saved > 0 else float("inf")

    def __str__(self) -> str:
        total = self.samples * self.sample_bytes
        build, read, fresh = (f"{seconds * 1e3:.1f} ms" for seconds in (self.build, self.read, self.fresh))
        return (
            f"{self.samples} samples x {self.sample_bytes / 1e6:.2f} MB = {total / 1e9:.3g} GB; per sample {build} to "
            f"build, then {read} instead of {fresh} in every epoch: pays after {self.break_even:.1f} epochs"
        )


def sample_bytes(
    *,
    text: tuple[int, int],
    visual: tuple[int, int] = (0, 0),
    latents: tuple[int, int, int],
    pictures: int = 1,
    reference_latents: bool = False,
    without_text: int = 0,
    state_bytes: int = 2,
) -> int:
    """Bytes of a sample's features. text: tokens and width; visual: states and width of a picture; latents: C, h, w;

    without_text: tokens of the prompt without an instruction, where text is dropped; state_bytes: of the encoders'
    dtype (the VAE's is float32).
    """
    channels, height, width = latents
    states = (text[0] + without_text) * text[1] + pictures * visual[0] * visual[1]
    kept = 2 * channels + (pictures * channels if reference_latents else 0)
    return states * state_bytes + kept * height * width * 4 + height * width // 4


def estimate(reader: PictureReader, encoders: Encoders, without_text: bool) -> Estimate:
    """Measured on a few samples from all over the index, after one to warm up."""
    count = min(MEASURED, len(reader.index))
    rows = [number * len(reader.index) // count for number in range(count)]
    dict(encoded(reader, encoders, rows[:1], without_text, 1))
    fresh = seconds(lambda: dict(encoded(reader, encoders, rows, False, 1)))
    keys: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part"
        build = seconds(lambda: path.write_bytes(packed(dict(encoded(reader, encoders, rows, without_text, 1)), keys)))
        read = seconds(lambda: [read_entry(path, fingerprint(keys), row, WITH_TEXT) for row in rows])
        size = path.stat().st_size
    return Estimate(len(reader.index), size / count, fresh / count, build / count, read / count)


def seconds(job: Callable[[], object]) -> float:
    """Wall-clock time of a call."""
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def cache_features(config: TrainConfig, folder: Path, accelerator: Accelerator) -> None:
    """Build, or finish, the feature cache of a configuration's training samples; prints its estimate first.

    Raises as `build_cache`, `build_index` and `open_editor`.
    """
    main = accelerator.is_main_process
    pipeline = open_editor(config, accelerator.device).to(accelerator.device)
    encoders, processor = pipeline.encoders(), pipeline.editor_processor()
    buckets = Buckets(config.data.size, config.data.aspect_ratios)
    with accelerator.main_process_first():
        index = build_index(config.data.datasets, "train", folder / ".index")
    kind = precision(config, accelerator.device)
    keys = cache_keys(index, config.data, buckets, processor, encoders, pipeline.sees_latents, str(kind))
    reader = PictureReader(index, config.data, buckets, processor, pipeline.sees_latents)
    with accelerator.main_process_first():
        claim(folder, keys)
    with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=kind == torch.bfloat16):
        if main:
            print(estimate(reader, encoders, keys["without_text"]), file=sys.stderr)
        ranks = accelerator.num_processes
        with progress("caching", len(index)) as advance:
            build_cache(
                reader,
                encoders,
                keys,
                folder,
                rank=accelerator.process_index,
                ranks=ranks,
                batch=config.micro_batch,
                advance=(lambda count: advance(count * ranks)) if main else lambda _: None,
            )
    accelerator.wait_for_everyone()


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = entry.parser("caching", "Build the feature cache of a training.", "folder of the cache; resumes")
    given = parser.parse_args(arguments)

    def build() -> None:
        from editfoundry.training.sharding import make_accelerator

        cache_features(load_config(TrainConfig, given.config, given.set), given.output, make_accelerator())

    entry.run(build)


if __name__ == "__main__":
    main()
