"""Verification gates: each measures one thing on the decoded stored bytes and fails an edge with a reason code.

A gate takes `EdgeView`s and the thresholds; for each it returns the values it measured, which become index columns, or
the failure that ends the sample. The order of gates is the configuration's, cheap to expensive by default.
"""

from editfoundry.data_engine.gates.base import Gate, each
from editfoundry.data_engine.gates.change import change
from editfoundry.data_engine.gates.detector import detector
from editfoundry.data_engine.gates.geometry import geometry, protected
from editfoundry.data_engine.gates.judge import judge
from editfoundry.data_engine.gates.quality import quality
from editfoundry.data_engine.gates.text_image import text_image

GATES: dict[str, Gate] = {
    "geometry": each(geometry),
    "change": each(change),
    "protected": each(protected),
    "detector": each(detector),
    "text_image": each(text_image),
    "quality": each(quality),
    "judge": judge,
}
ROLES: dict[str, tuple[str, ...]] = {
    "detector": ("detector", "image_embedder"),
    "text_image": ("scorer",),
    "quality": ("quality", "segmenter"),
    "judge": ("judge",),
}
"""Model roles that a gate cannot do without."""
ALSO: dict[str, tuple[str, ...]] = {"detector": ("tagger",), "quality": ("aesthetic",)}
"""Model roles that a gate asks too, where the run has them."""
