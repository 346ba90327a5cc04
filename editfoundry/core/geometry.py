"""Grid, Box and Mask: the geometry contract that data engine, training and inference share.

One `Grid` is fixed before rendering; source, mask, every intermediate and every result live on it, and `to_grid` is
the only way onto it. After a local edit `outside_difference` of the decoded stored JPEGs must be zero: 4:4:4 JPEG
codes each 8x8 block by itself, so equal pixels in give equal pixels out in every block the mask does not touch.
"""

from editfoundry.core.boxes import Box
from editfoundry.core.grids import Grid, grid_transform, resize, to_grid
from editfoundry.core.masks import Mask, containment_tree, outside_difference
from editfoundry.core.wording import position_agrees, position_words, size_words

__all__ = [
    "Box",
    "Grid",
    "Mask",
    "containment_tree",
    "grid_transform",
    "outside_difference",
    "position_agrees",
    "position_words",
    "resize",
    "size_words",
    "to_grid",
]
