"""Words for classes, and which ImageNet classes support a COCO label.

`imagenet_nouns.json` names the 1,000 ImageNet classes, in class order, by one short noun each, all different: mostly
the first phrase of the class's synset, elsewhere a plainer or less ambiguous word ("rooster", not "cock"; "crane bird"
and "construction crane").

`SUPPORT` says which ImageNet classes count as evidence for a COCO label. A class supports a label when a photograph
named with it shows the labelled object as its main part: an espresso is seen as a cup, a disk brake as part of a
motorcycle, a bagel may be a donut. Labels without any such class are left out, and `agrees` then says that the tagger
cannot judge. `person` has no class either, but worn things and people at work speak for one, so their presence counts
and their absence says nothing.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

from editfoundry.models.protocols import Tag

INDIRECT = frozenset({"person"})
SUPPORT: dict[str, tuple[int | range, ...]] = {
    "person": (399, 400, 433, 445, 451, 457, 461, 465, 474, 501, 518, 560, 568, 578, 608, 610, 614, 617, 638, 639, 652,
               655, 667, 689, 697, 735, 775, 796, 801, 824, 834, 837, 841, 842, 869, 887, 903, 906, 981, 982, 983),
    "bicycle": (444, 671),
    "car": (407, 436, 468, 475, 479, 511, 581, 609, 627, 656, 661, 717, 734, 751, 817),
    "motorcycle": (535, 665, 670),
    "airplane": (404, 895, 908),
    "bus": (654, 779, 874),
    "train": (466, 547, 565, 705, 820, 829),
    "truck": (555, 569, 586, 675, 717, 803, 864, 867),
    "boat": (472, 484, 510, 554, 576, 625, 628, 724, 780, 814, 871, 914),
    "traffic light": (920,),
    "street sign": (919,),
    "stop sign": (919,),
    "parking meter": (704,),
    "bench": (703,),
    "bird": (range(7, 25), range(80, 101), range(127, 147)),
    "cat": (range(281, 286),),
    "dog": (range(151, 269),),
    "horse": (339, 603),
    "sheep": (348, 349),
    "cow": (345, 346),
    "elephant": (101, 385, 386),
    "bear": (range(294, 298),),
    "zebra": (340,),
    "hat": (439, 452, 515, 808),
    "backpack": (414,),
    "umbrella": (879,),
    "shoe": (502, 514, 630, 770, 774),
    "eye glasses": (836, 837),
    "handbag": (636, 748),
    "tie": (451, 457, 906),
    "skis": (795,),
    "sports ball": (429, 430, 522, 574, 722, 768, 805, 852, 890),
    "tennis racket": (752,),
    "bottle": (440, 631, 711, 720, 737, 898, 901, 907),
    "plate": (923,),
    "wine glass": (441, 572, 966),
    "cup": (504, 647, 967, 968, 969),
    "knife": (499, 623),
    "spoon": (618, 910),
    "bowl": (659, 809),
    "banana": (954,),
    "apple": (948,),
    "sandwich": (933,),
    "orange": (950, 951),
    "broccoli": (937,),
    "hot dog": (934,),
    "pizza": (963,),
    "donut": (931,),
    "cake": (927,),
    "chair": (423, 559, 765, 857),
    "couch": (831,),
    "potted plant": (738,),
    "bed": (516, 520, 564, 831),
    "dining table": (532,),
    "window": (904, 905),
    "desk": (526,),
    "toilet": (861,),
    "door": (799,),
    "tv": (548, 598, 664, 782, 851),
    "laptop": (620, 681),
    "mouse": (673,),
    "remote": (761,),
    "keyboard": (508, 878),
    "cell phone": (487, 590, 605),
    "microwave": (651,),
    "oven": (766, 827),
    "toaster": (859,),
    "sink": (896,),
    "refrigerator": (760,),
    "book": (917, 921),
    "clock": (409, 530, 892),
    "vase": (883,),
    "teddy bear": (850,),
    "hair drier": (589,),
}


@cache
def imagenet_nouns() -> tuple[str, ...]:
    """The 1,000 ImageNet classes as short nouns, in class order."""
    text = (resources.files("editfoundry.models.embedded") / "imagenet_nouns.json").read_text(encoding="utf-8")
    return tuple(json.loads(text))


@cache
def supporting(coco_label: str) -> frozenset[str]:
    """The nouns of the ImageNet classes that support a COCO label; empty when there are none."""
    nouns = imagenet_nouns()
    classes = SUPPORT.get(coco_label, ())
    indices = [index for item in classes for index in (item if isinstance(item, range) else (item,))]
    return frozenset(nouns[index] for index in indices)


def agrees(coco_label: str, tags: Sequence[Tag]) -> float | None:
    """How far the tags of a crop support a detector's COCO label: the probability on supporting classes, in [0, 1].

    None means that the tagger cannot judge: no ImageNet class fits the label, or (for `INDIRECT` labels, where a class
    can speak for the label but none against it) no supporting class was seen.

    >>> agrees("cup", [Tag("espresso", 0.8), Tag("tray", 0.1)])
    0.8
    """
    nouns = supporting(coco_label)
    support = sum(tag.score for tag in tags if tag.label in nouns)
    if not nouns or (coco_label in INDIRECT and support == 0):
        return None
    return min(support, 1.0)
