"""What is known of released datasets: their columns, the range of their scores, and their names for our edit types.

Sources: the dataset cards of ScaleEdit-12M and OmniEdit-Filtered-1.2M; ImgEdit's README and its release. A
configuration may change any of it. Names that are missing here fit no type of ours; rows with them are rejected as
`unknown_type`, which says the name, until the configuration maps it.
"""

from typing import Any

_SCALEEDIT_TYPES = {
    "style_transfer": "style", "tone_adjustment": "style", "background_replacement": "background",
    "object_addition": "add", "object_removal": "remove", "object_replacement": "replace", "action_editing": "motion",
    "part_extraction": "extract", "color_change": "adjust", "material_change": "adjust", "count_change": "count",
    "size_change": "resize", "compositional_editing": "compose",
}  # fmt: skip
_IMGEDIT_TYPES = {
    "add": "add", "remove": "remove", "replace": "replace", "adjust": "adjust", "background": "background",
    "style": "style", "action": "motion", "motion": "motion", "extract": "extract", "visual": "visual",
    "compose": "compose", "hybrid": "compose", "move": "move", "resize": "resize", "count": "count",
}  # fmt: skip
_OMNIEDIT_TYPES = {
    "addition": "add", "removal": "remove", "swap": "replace", "obj_swap": "replace", "background": "background",
    "background_swap": "background", "attribute_modification": "adjust", "style": "style",
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "imgedit": {
        "masks": ["{folder}/mask{number}.png", "{stem}.mask.png"],
        "types": _IMGEDIT_TYPES,
        "infer_types": True,
    },
    "scaleedit": {
        "columns": {
            "id": "id",
            "source": "source_image",
            "result": "edited_image",
            "instruction": "edit_instruction",
            "type": "edit_task",
        },
        "scores": {
            name: {"low": 1, "high": 3}
            for name in ("instruction_following_score", "editing_consistency_score", "generation_quality_score")
        },
        "types": _SCALEEDIT_TYPES,
    },
    "omniedit": {
        "columns": {
            "id": "omni_edit_id",
            "source": "src_img",
            "result": "edited_img",
            "instruction": "edited_prompt_list",
            "type": "task",
        },
        "scores": {name: {"low": 0, "high": 10} for name in ("sc_score_1", "sc_score_2", "pq_score", "o_score")},
        "types": _OMNIEDIT_TYPES,
    },
    "parquet": {},
    "webdataset": {},
}


def with_preset(given: dict[str, Any]) -> dict[str, Any]:
    """A dataset's configuration over the preset of its layout; mappings are merged key by key."""
    preset = PRESETS.get(str(given.get("layout")), {})
    return _merged(preset, given)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged
