"""The layouts that photographs come in, by the `format` of their source specification."""

from editfoundry.core.errors import ConfigError
from editfoundry.data_engine.layouts.base import Layout
from editfoundry.data_engine.layouts.files import Files
from editfoundry.data_engine.layouts.img2dataset import Img2dataset
from editfoundry.data_engine.layouts.imgedit import ImgEditJson
from editfoundry.data_engine.layouts.laion import Laion
from editfoundry.data_engine.layouts.metadata import find_column
from editfoundry.data_engine.layouts.parquet import Parquet
from editfoundry.data_engine.layouts.webdataset import WebDataset
from editfoundry.data_engine.readers.storage import expand, is_folder, join, names
from editfoundry.data_engine.readers.tables import Table
from editfoundry.data_engine.source_spec import Format, SourceSpec

LAYOUTS: dict[str, type[Layout]] = {
    "files": Files,
    "webdataset": WebDataset,
    "img2dataset": Img2dataset,
    "laion": Laion,
    "parquet": Parquet,
    "imgedit-json": ImgEditJson,
}


def layout_of(spec: SourceSpec, number: int) -> Layout:
    """The layout of a specification, detected where it says `auto`."""
    if spec.format == "auto":
        spec = SourceSpec.model_validate({**spec.model_dump(exclude_unset=True), "format": detect(spec)})
    return LAYOUTS[spec.format](spec, number)


def detect(spec: SourceSpec) -> Format:
    """The layout that `auto` stands for, where only one is possible; raises ConfigError otherwise.

    By the first file the path names, or that its folder holds: Parquet with the columns `key` and `status` is
    img2dataset's (as is a tar beside it); without, one with a column of images is `parquet` and one with addresses and
    no images `laion`. A tar is `webdataset`. A folder without tars and Parquet is `files`. A JSON file is not guessed.
    """
    first = expand(spec.path)[0]
    inside = names(first) if is_folder(first) else [first]
    tables = [name for name in inside if name.endswith(".parquet")]
    tars = [name for name in inside if name.endswith(".tar") or ".tar.split." in name]
    if not tables and not tars and is_folder(first):
        return "files"
    if tars and not tables:
        return "webdataset"
    if tables:
        with Table(join(first, tables[0]) if is_folder(first) else tables[0]) as table:
            if {"key", "status"} <= set(table.columns):
                return "img2dataset"
            if not tars and Parquet.image_columns(table):
                return "parquet"
            if not tars and find_column("url", table.columns):
                return "laion"
    raise ConfigError(f"ingest.sources: {spec.path}: the layout is not plain; name it by `format`")
