"""The whole full stack on tiny random-weight checkpoints of its own classes, from photographs and a video to a dataset.

The checkpoints are loaded as production loads them, from folders named in the configuration. Only the language model is
far away: a real HTTP server that answers as a good model would, from what the requests say. What the random weights
find is noise, so `settings(permissive=True)` opens every threshold; geometry, certificate and graph rules stay.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import yaml
from chat_server import Handler, Received, Response, answer
from PIL import Image
from pycocotools import mask as coco
from skimage import data
from tiny import diffusion, perception

from editfoundry.data_engine.stages.verify import OTHER_INSTRUCTION

PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket")
OBJECTS = ("cup", "dog", "lamp", "bench", "kite", "vase")
CAPTION = {
    "text": "A cup stands beside a lamp; a dog lies near a bench, a kite hangs above a vase, a wall is behind.",
    "objects": list(OBJECTS),
    "backgrounds": ["wall"],
    "summary": "a cup, a lamp, a dog and a bench before a wall",
}
FIXED_TIME = 1_700_000_000
WORK = {"work_size": 64, "steps": 2, "dtype": "float32", "device": "cpu"}
SEED = 3


def answers(received: Received) -> Response:
    """What a good language model would reply: captions, wordings, judgements. The schema tells them apart."""
    schema = received.schema
    assert schema is not None, "every question of the engine has a schema"
    wanted = set(schema["properties"])
    if "objects" in wanted:
        return answer(CAPTION)
    if "turns" in wanted:
        return answer(wording(received.text))
    return answer(judgement(received))


def wording(prompt: str) -> dict[str, Any]:
    """The plan's own words, and its proposal wherever the result is open."""
    brief, rules = quoted(prompt), re.split(r"\nTurn \d+\. ", prompt)[1:]
    turns = [
        {"instruction": turn["draft"], "result": turn.get("result", "") if "yours to choose" in rule else ""}
        for turn, rule in zip(brief["turns"], rules, strict=True)
    ]
    return {"premise": brief.get("premise", ""), "turns": turns}


def judgement(received: Received) -> dict[str, Any]:
    """Full marks for an edit that changed something as it was told to, the lowest for canaries."""
    before, after = received.images[:2]
    idle = np.array_equal(before, after) or int(np.ptp(after)) < 8 or OTHER_INSTRUCTION in received.text
    score = 1 if idle else 5
    return {
        "following": score,
        "naturalness": score,
        "objects_match": "yes",
        "reason": "as asked" if score > 1 else "no",
    }


def quoted(text: str) -> dict[str, Any]:
    """The data block of a prompt."""
    block = re.search(r"<data>\s*(\{.*?\})\s*</data>", text, re.DOTALL)
    assert block is not None, text
    found: dict[str, Any] = json.loads(block[1])
    return found


HANDLER: Handler = answers


def checkpoints(folder: Path) -> dict[str, Path]:
    """A tiny checkpoint of every class that the full stack loads, by what it is."""
    built = {
        "detector": perception.grounding_dino,
        "segmenter": perception.sam2,
        "clip": perception.open_clip,
        "siglip": perception.siglip,
        "head": perception.aesthetic_head,
        "sdxl_inpaint": diffusion.sdxl_inpaint,
        "sdxl_base": diffusion.sdxl_base,
        "canny": diffusion.sdxl_controlnet_canny,
        "ip_adapter": diffusion.ip_adapter,
        "flux": diffusion.flux,
        "fill": diffusion.flux_fill,
        "redux": diffusion.flux_redux,
        "kontext": diffusion.flux_kontext,
    }
    return {name: build(folder / name) for name, build in built.items()}


def models(weights: dict[str, Path], url: str) -> dict[str, Any]:
    """The `models` section: every role of the full stack, each with its tiny checkpoint."""
    at = {name: str(path) for name, path in weights.items()}
    served = {"name": "openai", "base_url": url, "model": "scripted", "retry_min_s": 0.01, "retry_max_s": 0.05}
    cpu = {"dtype": "float32", "device": "cpu"}
    return {
        "captioner": served,
        "writer": served,
        "judge": served,
        "detector": {"name": "grounding-dino", "checkpoint": at["detector"], "box_threshold": 0.0, "top": 12, **cpu},
        "segmenter": {"name": "sam2", "checkpoint": at["segmenter"], **cpu},
        "scorer": {"name": "clip", "checkpoint": at["clip"], **cpu},
        "image_embedder": {"name": "siglip", "checkpoint": at["siglip"], **cpu},
        "aesthetic": {"name": "laion", "checkpoint": at["clip"], "head": at["head"], **cpu},
        "inpainter": {"name": "sdxl-inpaint", "checkpoint": at["sdxl_inpaint"], "grow": 8, **WORK},
        "painter": {"name": "flux-fill", "checkpoint": at["fill"], "grow": 8, **WORK},
        "adjuster": {"name": "sdxl-canny", "checkpoint": at["sdxl_inpaint"], "controlnet": at["canny"], **WORK},
        "inserter": {"name": "flux-redux", "checkpoint": at["fill"], "redux": at["redux"], "grow": 8, **WORK},
        "reference": {"name": "flux", "checkpoint": at["flux"], **WORK},
        "style": {"name": "sdxl-ip-adapter", "checkpoint": at["sdxl_base"], "controlnet": at["canny"],
                  "adapter": at["ip_adapter"], **WORK},
        "editor": {"name": "flux-kontext", "checkpoint": at["kontext"], **WORK},
    }  # fmt: skip


PERMISSIVE: dict[str, Any] = {
    "filter": {"min_short_side": 64, "max_unsafe": 1, "max_quality": 1e9, "min_contrast": 0, "min_brightness": 0,
               "max_flat": 1, "min_aesthetic": -1e9},
    "detect": {"min_score": 0, "open_score": 0, "min_area": 0, "max_area": 1, "read_text": False, "frame_score": 0,
               "frame_overlap": 1e-6},
    "segment": {"min_main_part": 0, "max_cut": 1},
    "qualify": {"min_area": 0.001, "max_area": 0.9, "min_stability": 0, "min_solidity": 0, "min_fill": 0, "max_fill": 1,
                "max_on_frame": 1, "min_contrast": 0, "min_visible": 0, "min_box": 0, "background_min_area": 0,
                "background_max_area": 1},
    "verify": {"thresholds": {
        "min_mask": 0, "max_mask": 1, "visible_difference": 0, "min_changed_share": 0, "min_changed_difference": 0,
        "min_prominence": 0, "min_style_difference": 0, "min_structure": -1, "max_background_motion": 1,
        "min_recognition_gain": -2, "max_scorer_drop": 10, "still_there": 2, "there": 0, "min_clip_score": 0,
        "min_direction": -1, "max_quality_drop": 1e9, "max_aesthetic_drop": 1e9, "max_seam": 1e9, "min_texture": 0,
        "max_texture": 1e9, "max_ghost": 10, "min_extract_share": 0, "min_following": 1, "min_naturalness": 1}},
}  # fmt: skip
PRODUCTION: dict[str, Any] = {
    **{name: PERMISSIVE[name] for name in ("filter", "detect", "segment", "qualify")},
    "verify": {},
}
"""Noise is let through to the renderers, so that verification, with its own thresholds, has something to reject."""


def write_config(folder: Path, weights: dict[str, Path], url: str, permissive: bool = True, **settings: Any) -> Path:
    """A configuration over photographs, a video and a style reference that are written beside it; returns its path."""
    sources(folder / "sources")
    Image.fromarray(data.retina()[300:812, 300:812]).save(folder / "style.png")
    chosen = PERMISSIVE if permissive else PRODUCTION
    plain = {
        "name": "tiny full stack", "stack": "full", "seed": SEED, "shard_size": 3, "grid_area": 192 * 192,
        "val_fraction": 0.0,
        "ingest": {"sources": [{"path": str(folder / "sources"), "licence": "see scikit-image"}, annotated(folder)],
                   "video": {"analysis_width": 320}},
        "models": models(weights, url),
        "similar": {"near": 0.99999},
        "catalogue": {"styles": [{"path": str(folder / "style.png"), "name": "an orange fundus picture"}]},
        "instruct": {
            "donor_rates": {},
            "photograph_rates": {"add": 1, "remove": 1, "style": 1, "extract": 1, "motion": 1},
            "generated_rates": {"replace": 1, "adjust": 1, "background": 1, "visual": 1, "extract": 1, "compose": 1},
            "generated_conversations": True,
            "conversation_rates": {"content_memory": 1, "content_understanding": 1, "version_backtracking": 1},
        },
        "render": {"best_of": {"replace": 2}, "max_uneven_ground": 1.0 if permissive else 0.1},
        **chosen,
    }  # fmt: skip
    plain["verify"] = {**plain["verify"], "gates": ["geometry", "change", "protected", "detector", "text_image",
                                                    "quality", "judge"]}  # fmt: skip
    for key, value in settings.items():
        plain[key] = {**plain[key], **value} if isinstance(value, dict) and isinstance(plain.get(key), dict) else value
    (folder / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    return folder / "config.yaml"


def sources(folder: Path) -> None:
    """Four photographs and a short video in which one figure walks."""
    folder.mkdir(parents=True)
    for name in PHOTOGRAPHS:
        Image.fromarray(getattr(data, name)()).save(folder / f"{name}.png")
    walk(folder / "walk.mp4")
    for path in folder.iterdir():
        os.utime(path, (FIXED_TIME, FIXED_TIME))


def annotated(folder: Path) -> dict[str, str]:
    """A photograph with the released ImgEdit annotation: two large objects with their masks, and a caption."""
    image = Image.fromarray(data.coffee())
    (folder / "annotated").mkdir()
    image.save(folder / "annotated/tray.png")
    regions = [
        marked(name, image, *place)
        for name, place in {"cup": (270, 130, 115, 110), "spoon": (500, 330, 60, 50)}.items()
    ]
    record = {
        "path": "tray.png", "cap": ["A cup and a spoon on a wooden table."], "aes": 5.5,
        "resolution": {"height": image.height, "width": image.width},
        "tags": {"background": ["wooden table"], "object": ["cup", "spoon"], "summary": "a cup and a spoon on a table"},
        "segmentation": {"background": [], "object": regions, "box_format": "xyxy"},
        "bg_count": {}, "obj_count": {"cup": 1, "spoon": 1},
    }  # fmt: skip
    (folder / "annotated.json").write_text(json.dumps([record]), encoding="utf-8")
    for path in (folder / "annotated.json", folder / "annotated/tray.png"):
        os.utime(path, (FIXED_TIME, FIXED_TIME))
    return {"path": str(folder / "annotated.json"), "format": "imgedit-json", "images": str(folder / "annotated")}


def marked(name: str, image: Image.Image, x: int, y: int, across: int, down: int) -> dict[str, Any]:
    """An elliptic region of the released layout."""
    rows, columns = np.mgrid[: image.height, : image.width]
    mask = ((columns - x) / across) ** 2 + ((rows - y) / down) ** 2 < 1
    counts = coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode("ascii")
    box = [x - across, y - down, x + across, y + down]
    return {"class_name": name, "bbox": box, "mask": counts, "score": 0.95, "clip_score": 0.9, "aes_score": 5.1}


def walk(path: Path, frames: int = 20) -> None:
    """A dark figure crossing a textured scene, 640×480 at 10 frames a second."""
    coarse = np.random.default_rng(1).integers(70, 180, (24, 32, 3), np.uint8)
    scene = np.kron(coarse, np.ones((20, 20, 1), np.uint8))
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.bit_rate, stream.thread_count = 640, 480, 8_000_000, 1
        for index in range(frames):
            frame = scene.copy()
            left = 100 + 12 * index
            frame[200:290, left : left + 36] = 10
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        output.mux(stream.encode())
