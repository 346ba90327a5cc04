"""WebDataset tars: members that share a key are one sample, an image with its texts and JSON beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from editfoundry.core.errors import ImageError
from editfoundry.data_engine.layouts.base import Block, Found, Layout, Opened, Refused
from editfoundry.data_engine.layouts.metadata import SHORT_SIDE, check_cuts, find_column
from editfoundry.data_engine.readers.records import parse
from editfoundry.data_engine.readers.storage import ContainerError, expand, files_below, identity, is_folder
from editfoundry.data_engine.readers.tars import Archive, Member, split_parts
from editfoundry.data_engine.source_spec import Locator, SourceFile, Span, clean_text, encoded, uri_of

IMAGES = ("jpg", "jpeg", "png", "webp")
TEXTS = ("txt", "caption", "text")
MAX_SIDECAR = 16 << 20


@dataclass
class Sample:
    """The members of one key: spans by extension; reason and detail when the sample cannot be used."""

    name: str
    spans: dict[str, Span] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""


class Samples(Block):
    """The samples of one tar."""

    def __init__(self, layout: Layout, parts: Sequence[str], samples: Sequence[Sample]) -> None:
        self._layout, self._samples = layout, samples
        self._containers = tuple(encoded(part) for part in parts)
        self._state = " ".join(identity(part) for part in parts)
        self.address, self.order, self.layout = parts[0], uri_of(parts[0]).encode(), layout.format

    def __len__(self) -> int:
        return len(self._samples)

    def source(self, index: int) -> SourceFile:
        sample = self._samples[index]
        locator = Locator(containers=self._containers, spans=sample.spans)
        return self._layout._source(self.address, sample.name, locator, self._state, reason=sample.reason,
                                    detail=sample.detail)  # fmt: skip


class WebDataset(Layout):
    """One source a key. The key is a member's path up to the first dot of its name, as WebDataset reads it.

    The image is the member with the extension jpg, jpeg, png or webp, or the one that `columns.image` names. Rejects:
    `unsafe_member` (links, devices, paths that leave), `duplicate_key`, `dotted_key` (a name with dots before the
    extension, which WebDataset would cut there), `no_image`, `several_images`.
    """

    format = "webdataset"

    def blocks(self) -> Iterator[Block]:
        urls = [url for found in expand(self.spec.path)
                for url in (tar_files(found) if is_folder(found) else [found])]  # fmt: skip
        for parts in split_parts(urls):
            samples, damage = self.samples(parts)
            yield Samples(self, parts, samples)
            if damage is not None:
                yield Refused(self, parts[0], "end", damage.reason, str(damage))

    def samples(self, parts: Sequence[str]) -> tuple[list[Sample], ContainerError | None]:
        """The samples of a tar in stored order, and what ended reading its headers, None if they are whole."""
        samples: dict[str, Sample] = {}
        extra: list[Sample] = []
        damage = None
        try:
            with Archive(parts) as archive:
                for member in archive.members():
                    self._take(member, samples, extra)
        except ContainerError as error:
            damage = error
        for sample in samples.values():
            self._judge(sample)
        return [*samples.values(), *extra], damage

    def read(self, locator: Locator, opened: Opened, max_bytes: int) -> Found:
        parts, spans = locator.urls, locator.spans
        record: dict[str, Any] = {}
        if "json" in spans:
            parsed = parse(opened.span(parts, spans["json"], MAX_SIDECAR), "its json")
            if not isinstance(parsed, dict):
                raise ImageError("bad_record", "its json is not an object")
            record = parsed
        columns = list(record)
        scores = check_cuts(self.spec, {cut: self._values(cut, record, columns) for cut in self.spec.metadata})
        data = opened.span(parts, spans[self._image(spans)], max_bytes)
        text = self._text("text", record, columns)
        if not text:
            named = next((name for name in (self.spec.columns.get("text"), *TEXTS) if name in spans), None)
            raw = opened.span(parts, spans[named], MAX_SIDECAR) if named else b""
            text = clean_text(raw.decode("utf-8", "replace"))
        licence, url = self._text("licence", record, columns), self._text("url", record, columns)
        return Found(data, text, licence, url, scores)

    def address(self, locator: Locator, opened: Opened) -> str:
        """The address in a sample's json, "" for none; no pixel is read."""
        if "json" not in locator.spans:
            return ""
        record = parse(opened.span(locator.urls, locator.spans["json"], MAX_SIDECAR), "its json")
        return self._text("url", record, list(record)) if isinstance(record, dict) else ""

    def _take(self, member: Member, samples: dict[str, Sample], extra: list[Sample]) -> None:
        folder, slash, base = member.name.rpartition("/")
        if member.problem:
            shown = member.name.encode("unicode_escape").decode()
            extra.append(Sample(shown, reason="unsafe_member", detail=member.problem))
            return
        if base.startswith("."):
            return
        stem, _, extension = base.partition(".")
        key = f"{folder}{slash}{stem}"
        sample = samples.setdefault(key, Sample(key))
        if extension.lower() in sample.spans:
            extra.append(Sample(f"{member.name}@{member.offset}", reason="duplicate_key",
                                detail=f"the key {key} has a {extension} before; keys must be unique"))  # fmt: skip
            return
        sample.spans[extension.lower()] = (member.offset, member.size)

    def _judge(self, sample: Sample) -> None:
        images = self._images(sample.spans)
        if len(images) == 1:
            return
        if images:
            sample.reason = "several_images"
            sample.detail = f"has {' and '.join(images)}; name the one that counts by columns.image"
        elif dotted := next((one for one in sample.spans if one.rpartition(".")[2] in IMAGES), None):
            sample.reason = "dotted_key"
            sample.detail = (f"its name has a dot before the extension, so WebDataset takes {dotted!r} for it"
                             "; name it by columns.image, or write keys without dots")  # fmt: skip
        else:
            sample.reason = "no_image"
            sample.detail = f"no image among {', '.join(sample.spans) or 'its members'}"
        sample.spans = {}

    def _images(self, spans: dict[str, Span]) -> list[str]:
        named = self.spec.columns.get("image")
        return [name for name in ([named.lower()] if named else IMAGES) if name in spans]

    def _image(self, spans: dict[str, Span]) -> str:
        return self._images(spans)[0]

    def _values(self, cut: str, record: dict[str, Any], columns: Sequence[str]) -> list[Any]:
        wanted = [cut]
        if cut == SHORT_SIDE and cut not in columns:
            wanted = [self.spec.columns.get("width", "width"), self.spec.columns.get("height", "height")]
        return [record.get(find_column(name, columns) or "") for name in wanted]

    def _text(self, role: Any, record: dict[str, Any], columns: Sequence[str]) -> str:
        named = self.spec.columns.get(role)
        value = record.get(named) if named else record.get(find_column(role, columns) or "")
        return clean_text(value) if isinstance(value, str) else ""


def tar_files(folder: str) -> list[str]:
    """The tars at any depth of a folder, parts of split ones included."""
    found = files_below(folder, ("",))
    return [url for url in found if url.endswith(".tar") or ".tar.split." in url.rsplit("/", 1)[-1]]
