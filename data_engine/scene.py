"""A picture under edit: base pixels with placed objects on top, so that any node is exact to recompute.

Removing a placed object gives back the very pixels that were behind it, in whatever order the edits came.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Mask
from editfoundry.models.embedded.compositing import Layer, composite, support

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Scene:
    """Base pixels uint8 [H, W, 3] and named layers, drawn in order.

    alone: pictures, by object, that show it by itself; they are kept with the scene and not drawn.
    """

    base: Image
    layers: tuple[tuple[str, Layer], ...] = ()
    alone: tuple[tuple[str, Image], ...] = ()

    @cached_property
    def pixels(self) -> Image:
        """The picture, uint8 RGB [H, W, 3]."""
        image = self.base
        for _, layer in self.layers:
            image = composite(image, layer)
        return image

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape[0], self.base.shape[1]

    def layer(self, name: str) -> Layer:
        """The layer of that name. Raises KeyError."""
        return dict(self.layers)[name]

    def has(self, name: str) -> bool:
        return any(name == other for other, _ in self.layers)

    def with_layer(self, name: str, layer: Layer) -> "Scene":
        """The scene with the layer drawn in its old place, or on top when the name is new."""
        if self.has(name):
            return replace(self, layers=tuple((n, layer if n == name else old) for n, old in self.layers))
        return replace(self, layers=(*self.layers, (name, layer)))

    def without(self, name: str) -> "Scene":
        return replace(self, layers=tuple((n, layer) for n, layer in self.layers if n != name))

    def with_base(self, base: Image) -> "Scene":
        return replace(self, base=base)

    def painted_over(self, name: str, pixels: Image, mask: Mask) -> "Scene":
        """The scene that looks like `pixels` inside the mask and wherever the named object was, as that object.

        `pixels` equal the scene's own outside the mask; without the object the scene is what it was without it before.
        """
        return self.without(name).with_layer(name, patch(pixels, mask | self.touched((name,))))

    def touched(self, names: Sequence[str]) -> Mask:
        """Every pixel the named layers (those present) can change."""
        mask = Mask(np.zeros(self.shape, bool))
        for name, layer in self.layers:
            if name in names:
                mask = mask | support(layer, self.shape)
        return mask


def patch(pixels: Image, mask: Mask) -> Layer:
    """A layer that shows exactly these pixels (uint8 [H, W, 3]) inside the mask and nothing elsewhere.

    Raises ValueError for an empty mask.
    """
    box = mask.box()
    if box is None:
        raise ValueError("a patch needs a mask that is not empty")
    left, top, right, bottom = box.to_ints()
    alpha = mask.array[top:bottom, left:right].astype(np.float32)
    rgb = np.ascontiguousarray(pixels[top:bottom, left:right])
    return Layer(rgb, alpha, np.zeros_like(alpha), left, top)


def changed(before: Scene, after: Scene) -> Mask:
    """Pixels that differ between two scenes."""
    return Mask((before.pixels != after.pixels).any(axis=2))
