"""Image IO against Pillow and OpenCV: photographs to the grid, at full size, to dataset bytes, and headers only.

All contenders that decode to the grid end with the same resize, so that the ratio is about decoding. Photographs with
an embedded colour profile are a case of their own, since only Pillow can convert them to sRGB as we do. What remains
different is in our disfavour: ours turns photographs upright and refuses files from which pixels are missing.
"""

import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from _measure import Case, Contender, arguments, measure, report, timed
from numpy.typing import NDArray
from PIL import Image, ImageCms

from editfoundry.core.config import cache_root
from editfoundry.core.geometry import Grid, to_grid
from editfoundry.core.images import JPEG_QUALITY, decode, encode_jpeg, read_info

Photograph = tuple[bytes, Grid]
Pixels = NDArray[np.uint8]


def pillow_full(data: bytes, grid: Grid) -> Pixels:
    del grid
    return np.asarray(Image.open(BytesIO(data)).convert("RGB"))


def pillow_draft(data: bytes, grid: Grid) -> Pixels:
    image = Image.open(BytesIO(data))
    image.draft("RGB", (grid.width, grid.height))
    return np.asarray(image.convert("RGB"))


def cv2_full(data: bytes, grid: Grid) -> Pixels:
    del grid
    return _cv2(data, cv2.IMREAD_COLOR_RGB)


def cv2_reduced(data: bytes, grid: Grid) -> Pixels:
    """OpenCV's own DCT scaling; it has to be told the scale, which takes a look at the header first."""
    sides = Image.open(BytesIO(data)).size
    scales = ((8, cv2.IMREAD_REDUCED_COLOR_8), (4, cv2.IMREAD_REDUCED_COLOR_4), (2, cv2.IMREAD_REDUCED_COLOR_2))
    flag = next((flag for scale, flag in scales if min(sides) // scale >= min(grid.shape)), cv2.IMREAD_COLOR)
    pixels: Pixels = cv2.cvtColor(_cv2(data, flag), cv2.COLOR_BGR2RGB)
    return pixels


def pillow_profile(data: bytes, grid: Grid) -> Pixels:
    """Draft mode, then the embedded profile converted to sRGB by the same rules as ours."""
    image = Image.open(BytesIO(data))
    image.draft("RGB", (grid.width, grid.height))
    converted = ImageCms.profileToProfile(
        image, ImageCms.ImageCmsProfile(BytesIO(image.info["icc_profile"])), ImageCms.createProfile("sRGB"),
        ImageCms.Intent.RELATIVE_COLORIMETRIC, "RGB", flags=ImageCms.Flags.BLACKPOINTCOMPENSATION)
    return np.asarray(converted)


def _cv2(data: bytes, flag: int) -> Pixels:
    pixels: Pixels | None = cv2.imdecode(np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    assert pixels is not None
    return pixels


def pillow_encoded(pixels: Pixels, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def photographs(folder: Path, min_short_side: int, count: int, area: int) -> tuple[list[Photograph], list[Photograph]]:
    """JPEGs of the folder, each with its grid: those without and those with a colour profile, up to `count` of either,

    in order of names. Exits if there is none without.
    """
    plain: list[Photograph] = []
    profiled: list[Photograph] = []
    for path in sorted(folder.glob("*.jpg")):
        data = path.read_bytes()
        info = read_info(data)
        kind = profiled if info.icc else plain
        if info.mode == "RGB" and min(info.width, info.height) >= min_short_side and len(kind) < count:
            kind.append((data, Grid.for_size(info.width, info.height, area)))
    if not plain:
        sys.exit(f"{folder}: no colour JPEG with a short side of at least {min_short_side}; `editfoundry quickstart` "
                 "fetches photographs, or name a folder with --photographs")
    return plain, profiled


def gridded(decoder: Callable[[bytes, Grid], Pixels], sources: Sequence[Photograph]) -> Contender:
    """Decodes every photograph and resizes it to its grid."""
    return timed(lambda: [to_grid(decoder(data, grid), grid) for data, grid in sources])


def ours(data: bytes, grid: Grid) -> Pixels:
    return decode(data, target=min(grid.shape))


def profile_cases(sources: Sequence[Photograph]) -> list[Case]:
    """Nothing if no photograph has a profile."""
    if not sources:
        return []
    peers = {"Pillow draft mode and ImageCms": gridded(pillow_profile, sources)}
    return [Case("decode to the grid, with profile", len(sources), gridded(ours, sources), peers)]


def cases(sources: Sequence[Photograph]) -> list[Case]:
    decoders: dict[str, Callable[[bytes, Grid], Pixels]] = {
        "Pillow draft mode": pillow_draft, "cv2 reduced mode": cv2_reduced, "Pillow full size": pillow_full,
        "cv2 full size": cv2_full}
    on_grid = [to_grid(ours(*source), source[1]) for source in sources]

    def encoded(encoder: Callable[[Pixels], bytes]) -> Contender:
        return timed(lambda: [encoder(pixels) for pixels in on_grid])

    count = len(sources)
    return [
        Case("decode to the grid", count, gridded(ours, sources),
             {name: gridded(decoder, sources) for name, decoder in decoders.items()}),
        Case("decode at full size", count, timed(lambda: [decode(data) for data, _ in sources]),
             {"Pillow": timed(lambda: [pillow_full(*source) for source in sources]),
              "cv2": timed(lambda: [cv2_full(*source) for source in sources])}),
        Case("encode on the grid, 4:4:4 JPEG", count, encoded(encode_jpeg),
             {"Pillow JPEG, same settings": encoded(lambda pixels: pillow_encoded(
                 pixels, "JPEG", quality=JPEG_QUALITY, subsampling=0)),
              "Pillow PNG, default level": encoded(lambda pixels: pillow_encoded(pixels, "PNG"))}),
        Case("read a header", 10 * count, timed(lambda: [read_info(data) for data, _ in sources for _ in range(10)]),
             {"floor: Pillow open": timed(lambda: [Image.open(BytesIO(data)) for data, _ in sources
                                                   for _ in range(10)])}),
    ]


def main() -> None:
    parser = arguments("Decode and encode photographs with editfoundry, Pillow and OpenCV.", rounds=7)
    parser.add_argument("--photographs", type=Path, default=cache_root() / "photographs" / "photographs",
                        help="folder of JPEGs (default: those of the quickstart)")
    parser.add_argument("--min-short-side", type=int, default=1000, help="smaller JPEGs are left out")
    parser.add_argument("--count", type=int, default=12, help="how many JPEGs of either kind, at most")
    parser.add_argument("--area", type=int, default=400_000, help="pixels of the grid")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    plain, profiled = photographs(options.photographs, options.min_short_side, options.count, options.area)
    jobs = [*cases(plain), *profile_cases(profiled)]
    results = [result for case in jobs for result in measure(case, options.rounds)]
    infos = [read_info(data) for data, _ in plain]
    data = {"photographs": len(plain), "megapixels": round(sum(i.width * i.height for i in infos) / 1e6, 1),
            "bytes": sum(len(data) for data, _ in plain), "grid_area": options.area, "with_profile": len(profiled)}
    report(options.json, "decode", rounds=options.rounds, data=data, results=results,
           packages=("pillow", "opencv-python-headless", "simplejpeg", "numpy"))


if __name__ == "__main__":
    main()
