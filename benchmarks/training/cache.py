"""A training step with features from the cache against one that encodes them, on the miniature editor.

Its encoders are tiny, so the ratio says that the cache works, not what it saves: for that, `editfoundry train cache`
measures a production editor before it builds. Here are also its size per sample and when it pays.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import torch
from _measure import Case, arguments, measure, report, timed
from loader import photographs_in, write_dataset

from editfoundry.core.config import cache_root
from editfoundry.models.editor import latents
from editfoundry.models.editor.miniature import write_miniature
from editfoundry.models.editor.pipeline import load_editor
from editfoundry.training import flow
from editfoundry.training.caching import estimate, sample_bytes
from editfoundry.training.config import DataConfig, DatasetSpec, Timesteps
from editfoundry.training.data.batch import Features, MicroBatch
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.cache import FeatureCache, build_cache, cache_keys
from editfoundry.training.data.index import build_index
from editfoundry.training.data.micro import MicroBatchBuilder
from editfoundry.training.data.pictures import PictureReader

LEARNING_RATE = 1e-4


def step(editor: Any, encoders: Any, optimiser: torch.optim.Optimizer, batch: MicroBatch) -> float:
    """One optimiser step; returns the loss."""
    content = batch.content
    if not isinstance(content, Features):
        with torch.no_grad():
            condition = encoders.condition(content.inputs, content.references)
            content = Features(condition, encoders.moments(content.target))
    x0 = latents.sample(encoders.vae, content.moments, batch.posterior_noise)
    prediction = editor(flow.noised(x0, batch.noise, batch.sigma), batch.sigma, content.condition, 1.0)
    loss = flow.weighted_squares(prediction, latents.pack(flow.target(x0, batch.noise)), batch.weight).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def main(options: argparse.Namespace) -> None:
    photographs = photographs_in(options.photographs)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = write_dataset(Path(name) / "dataset", photographs, options.samples, options.samples)
        pipeline = load_editor(write_miniature(Path(name) / "editor"), device="cpu")
        data = DataConfig(datasets=(DatasetSpec(path=str(folder)),), size=options.size)
        index = build_index(data.datasets, "train", Path(name) / "index")
        buckets, processor, encoders = (
            Buckets(data.size, data.aspect_ratios),
            pipeline.editor_processor(),
            pipeline.encoders(),
        )
        reader = PictureReader(index, data, buckets, processor, pipeline.sees_latents)
        keys = cache_keys(index, data, buckets, processor, encoders, pipeline.sees_latents, "float32")
        build_cache(reader, encoders, keys, Path(name) / "cache", batch=options.batch)
        cache = FeatureCache(Path(name) / "cache", keys, len(index))
        editor = pipeline.model()
        optimiser = torch.optim.AdamW(editor.transformer.parameters(), lr=LEARNING_RATE)

        def builder(given: FeatureCache | None) -> MicroBatchBuilder:
            return MicroBatchBuilder(
                index,
                data,
                buckets,
                processor,
                int(pipeline.vae.config.latent_channels),
                latents.factor(pipeline.vae),
                Timesteps(),
                0,
                references=pipeline.sees_latents,
                cache=given,
            )

        def job(of: MicroBatchBuilder, train: bool) -> Callable[[], None]:
            def run() -> None:
                rows = list(range(options.batch))
                batch = of.build(rows, reader.bucket(0), 0, range(options.batch))
                if train:
                    step(editor, encoders, optimiser, batch)

            return run

        cached, fresh = builder(cache), builder(None)
        results = [
            *measure(
                Case(
                    "batch and step, miniature",
                    options.batch,
                    timed(job(cached, True)),
                    {"without a cache": timed(job(fresh, True))},
                ),
                options.rounds,
            ),
            *measure(
                Case(
                    "batch alone, miniature",
                    options.batch,
                    timed(job(cached, False)),
                    {"without a cache": timed(job(fresh, False))},
                ),
                options.rounds,
            ),
        ]
        facts = {
            "encoders": "tiny, random weights",
            "miniature": str(estimate(reader, encoders, keys["without_text"])),
            "production_bytes_per_sample": sample_bytes(text=(286, 3584), visual=(1024, 1152), latents=(16, 64, 64)),
            "production_bytes_without_text": 266 * 3584 * 2,
        }
        report(
            options.json,
            "training/cache",
            rounds=options.rounds,
            results=results,
            facts=facts,
            data={"samples": options.samples, "batch": options.batch, "size": options.size},
            packages=("torch", "transformers", "diffusers", "safetensors"),
        )


if __name__ == "__main__":
    parser = arguments("A training step with and without the feature cache.", rounds=7)
    parser.add_argument("--samples", type=int, default=16, help="edit pairs (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="samples of a step (default: %(default)s)")
    parser.add_argument("--size", type=int, default=64, help="square root of a picture's pixels (default: %(default)s)")
    parser.add_argument(
        "--photographs",
        type=Path,
        default=cache_root() / "photographs" / "photographs",
        help="folder of JPEGs (default: those of the quickstart)",
    )
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary folder)")
    main(parser.parse_args())
