"""Optimiser steps of the editor at real size with random weights: time, memory, tokens a second, and MFU.

Qwen2.5-VL-7B, FLUX.1-dev, SigLIP2-so400m and FLUX's autoencoder are built on the GPU from their released
configurations. The trainer's own `train_step` runs on them with the packaged configurations, over one micro-batch of
random pictures with instructions of different lengths (so that attention is masked, as it mostly is in training).
"pictures" is a step as it comes from the loader; "features" one of the feature cache, without the frozen encoders,
which no MFU counts. Loading is not in it. Without a GPU it says so and measures nothing, unless with --tiny.
"""

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import torch
from _configurations import FULL, TINY
from _measure import machine, spread
from _models import building, editor, editor_pipeline
from accelerate import Accelerator
from accelerate.utils import send_to_device

from editfoundry.core.config import load_config
from editfoundry.core.hashing import rng_for
from editfoundry.models.editor import latents
from editfoundry.models.editor.prompt import levels
from editfoundry.models.editor.types import EditRequest
from editfoundry.training import flow
from editfoundry.training.config import TrainConfig
from editfoundry.training.data.batch import Features, MicroBatch, Pictures
from editfoundry.training.ema import Ema
from editfoundry.training.flops import Flops
from editfoundry.training.loop import peak_memory
from editfoundry.training.parameters import frozen_dtype, prepare_parameters, store_float8
from editfoundry.training.sharding import build_engine, make_accelerator
from editfoundry.training.trainer import Trainer

PACKAGES = ("editfoundry", "torch", "transformers", "diffusers", "accelerate", "peft")
STAGES = ("stage1", "lora", "stage2")
WARM_UPS = 2
INSTRUCTION = "make the sky behind the old lighthouse darker and add a flock of birds over the water to its left"
Result = dict[str, Any]


class RandomTrainer(Trainer):
    """The trainer around an editor that was built in memory, without data, checkpoints and validation.

    Of `Trainer`, everything that `train_step` needs is set here as `__init__` and `prepare` set it.
    """

    def __init__(self, config: TrainConfig, pipeline: Any, accelerator: Accelerator) -> None:
        self.config, self.accelerator, self.accumulation = config, accelerator, 1
        self.pipeline, self.model = pipeline, pipeline.model()
        if config.frozen == "float8":
            store_float8(*filter(None, (pipeline.vlm, pipeline.visual_encoder)))
        self.parameters = prepare_parameters(self.model, config, accelerator.device)
        self.encoders, self.processor = pipeline.encoders(), pipeline.editor_processor()
        self.index = SimpleNamespace(types=["adjust"])
        self.step = 0
        self.flops = Flops(self.model)
        self.engine = build_engine(accelerator, self.model, self.parameters, config.optimiser)
        self.ema = Ema(self.engine.local_parameters(), config.ema.decay) if config.ema else None

    def batch(self) -> MicroBatch:
        """Random pictures, noise and noise levels, and instructions of different lengths, on the device."""
        count, side, vae = self.config.micro_batch, self.config.data.size, self.pipeline.vae
        random = rng_for("gpu-training")
        pictures = random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        texts = [INSTRUCTION[: len(INSTRUCTION) - 4 * (number % 8)] for number in range(count)]
        inputs = self.processor([EditRequest(text, (picture,)) for text, picture in zip(texts, pictures, strict=True)])
        latent = side // latents.factor(vae)
        shape, tokens = (count, int(vae.config.latent_channels), latent, latent), (latent // 2) ** 2
        generator = torch.Generator().manual_seed(0)
        batch = MicroBatch(
            content=Pictures(inputs, levels(list(pictures[:, ::-1])), None),
            weight=torch.ones(count, tokens),
            valid=torch.ones(count, dtype=torch.bool),
            noise=torch.randn(shape, generator=generator),
            posterior_noise=torch.randn(shape, generator=generator),
            sigma=flow.draw_sigma(tokens, self.config.timesteps, generator, count),
            visual_kept=torch.ones(count, dtype=torch.bool),
            position=0,
            keys=tuple(map(str, range(count))),
            types=("adjust",) * count,
            problems=(),
        )
        moved: MicroBatch = send_to_device(batch, self.accelerator.device)
        return moved

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def cached(self, batch: MicroBatch) -> MicroBatch:
        """The batch as the feature cache gives it."""
        content = batch.content
        assert isinstance(content, Pictures)
        with self.autocast():
            condition = self.encoders.condition(content.inputs, content.references)
            features = Features(condition, self.encoders.moments(content.target))
        return batch._replace(content=features)

    def timed(self, batch: MicroBatch, rounds: int) -> Result:
        """Steps over one batch, after warm-ups that count for the peak of memory only."""
        if self.accelerator.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for number in range(WARM_UPS + rounds):
            started = time.perf_counter()
            samples, _ = self.train_step([batch])
            synchronise(self.accelerator.device)
            self.step += 1
            if number >= WARM_UPS:
                seconds.append(time.perf_counter() - started)
        tokens, operations = samples[:, 5:].sum(0)
        figures = spread(seconds)
        return {
            "steps": rounds,
            "loss": float(samples[:, 1].mean()),
            "ms_per_step": {name: round(1e3 * value, 3) for name, value in figures.items()},
            "tokens_per_step": int(tokens),
            "tokens_per_s": round(tokens / figures["median"], 1),
            "samples_per_s": round(len(samples) / figures["median"], 3),
            "teraflop_per_step": float(f"{operations / 1e12:.6g}"),
            "teraflop_per_s": float(f"{operations / 1e12 / figures['median']:.4g}"),
            "mfu": self._utilisation(operations / figures["median"]),
            "peak_gb": round(peak_memory(self.accelerator.device) / 1e9, 2),
        }


def settings(stage: str, options: argparse.Namespace) -> TrainConfig:
    """The packaged configuration of a stage with what the command line changes; a step is one micro-batch."""
    size = options.size or (64 if options.tiny else 512)
    changes = [f"data.size={size}", *(["gradient_checkpointing=true"] if options.checkpointing else []), *options.set]
    config = load_config(TrainConfig, f"train/{stage}.yaml", changes)
    batch = options.batch or (2 if options.tiny else config.micro_batch)
    return config.model_copy(update={"micro_batch": batch, "global_batch": batch})


def measure(stage: str, options: argparse.Namespace, accelerator: Accelerator) -> list[Result]:
    """A stage's results, one for a step of pictures and one for a step of features."""
    config, device = settings(stage, options), accelerator.device
    sizes = TINY if options.tiny else FULL
    started = time.perf_counter()
    with building(device.type, frozen_dtype(config, device)):
        torch.manual_seed(0)
        parts = {name: part.eval().requires_grad_(False) for name, part in editor(sizes).items()}
    counts = {name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()}
    trainer = RandomTrainer(config, editor_pipeline(parts, sizes, config.stage != "connector"), accelerator)
    batch = trainer.batch()
    synchronise(device)
    common = {
        "stage": stage,
        "state": "measured",
        "size": config.data.size,
        "batch": config.micro_batch,
        "gradient_checkpointing": config.gradient_checkpointing,
        "parameters": counts,
        "trained": sum(parameter.numel() for parameter in trainer.parameters.values()),
        "build_s": round(time.perf_counter() - started, 2),
    }
    kinds = {"pictures": batch, "features": trainer.cached(batch)}
    return [{**common, "content": kind, **trainer.timed(given, options.rounds)} for kind, given in kinds.items()]


def measure_all(options: argparse.Namespace) -> list[Result]:
    """Every stage's results; one that fails is reported, and the next is tried on an empty GPU."""
    accelerator, results = make_accelerator(cpu=options.tiny), []
    for stage in options.stage or STAGES[:1]:
        try:
            results += measure(stage, options, accelerator)
        except Exception as error:  # noqa: BLE001 - reported, and the exit code
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            results.append({"stage": stage, "state": "failed", "reason": reason})
        gc.collect()
        if accelerator.device.type == "cuda":
            torch.cuda.empty_cache()
    return results


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def print_table(content: Mapping[str, Any]) -> None:
    """What was measured, on which machine and with which versions."""
    print(f"gpu-training: median (min to max) ms per step; device {content['device']}"
          f"{'; TINY models, the figures mean nothing' if content['tiny'] else ''}")  # fmt: skip
    for section in ("machine", "versions"):
        print(f"{section}: " + ", ".join(f"{key} {value}" for key, value in content[section].items()))
    print(f"\n{'step':<42} {'ms':<34} {'tokens/s':>9} {'TFLOP/s':>8} {'MFU':>6} {'peak GB':>8}")
    for result in content["results"]:
        if result["state"] == "failed":
            print(f"{result['stage']}: failed: {result['reason']}")
            continue
        name = f"{result['stage']} of {result['batch']} {result['content']} at {result['size']}"
        time_spread = result["ms_per_step"]
        figures = f"{time_spread['median']:.1f} ({time_spread['min']:.1f} to {time_spread['max']:.1f})"
        mfu = "-" if result["mfu"] is None else f"{result['mfu']:.1%}"
        checkpointed = ", checkpointed" if result["gradient_checkpointing"] else ""
        print(f"{name + checkpointed:<42} {figures:<34} {result['tokens_per_s']:>9.0f} "
              f"{result['teraflop_per_s']:>8.4g} {mfu:>6} {result['peak_gb']:>8.2f}")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", action="append", choices=STAGES, metavar="NAME", help="configuration to measure; "
                        f"repeatable: {', '.join(STAGES)} (default: {STAGES[0]})")  # fmt: skip
    parser.add_argument("--size", type=int, help="square root of a picture's pixels (default: 512)")
    parser.add_argument("--batch", type=int, help="samples of a step (default: the configuration's micro_batch)")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing in every stage")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in `train editor`")
    parser.add_argument("--rounds", type=int, default=10, help="measured steps (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="tiny models on the CPU: shows that the script works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as one JSON object")
    options = parser.parse_args(arguments)
    if not options.tiny and not torch.cuda.is_available():
        print("skipped: no CUDA device; a training step of real size stays unmeasured here (--tiny shows that this "
              "script works)")  # fmt: skip
        return
    results = measure_all(options)
    cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    content = {
        "benchmark": "gpu-training",
        "machine": machine(),
        "device": "CPU" if options.tiny else torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}, **cuda},
        "tiny": options.tiny,
        "results": results,
    }
    print_table(content)
    if options.json:
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if any(result["state"] == "failed" for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
