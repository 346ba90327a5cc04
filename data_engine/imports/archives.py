"""Finding pictures by their path in a set of tars, split ones included, without reading more tars than needed."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from editfoundry.core.errors import ImageError
from editfoundry.data_engine.imports.rows import RowRefused
from editfoundry.data_engine.readers.storage import ContainerError
from editfoundry.data_engine.readers.tars import Archive, Member

INDEXES_IN_MEMORY = 8


@dataclass
class _Index:
    """The members of one tar by path, and what went wrong after the last whole one."""

    archive: Archive
    members: dict[str, Member] = field(default_factory=dict)
    error: ContainerError | None = None


class Pictures:
    """Pictures by path in many tars.

    A dataset names its tars `part3.tar`, `part3.tar.split.000`, … and its pictures by paths whose first folder need not
    be the tar's name. Tars are looked through in the likeliest order, each once; the folders found in them are
    remembered, the members of the last few tars are kept.
    """

    def __init__(self, archives: Sequence[Sequence[str]], max_bytes: int) -> None:
        self.archives, self.max_bytes = archives, max_bytes
        self._names = [_stem(parts[0]) for parts in archives]
        self._roots: dict[str, set[int]] = {}
        self._errors: dict[int, ContainerError] = {}
        self._seen: set[int] = set()
        self._kept: OrderedDict[int, _Index] = OrderedDict()

    def read(self, path: str) -> bytes:
        """The bytes of a picture. Raises ImageError: `bad_path`, `missing_member`, `too_many_bytes`, and the tar's."""
        found = self.find(path)
        if found is None:
            if self._errors:
                # Half a download explains a missing picture better than the picture does.
                first = self._errors[min(self._errors)]
                raise ContainerError(first.reason, f"{path}: in no tar, and {first}")
            raise RowRefused("missing_member", f"{path}: in none of the {len(self.archives)} tars")
        archive, member = found
        if member.size > self.max_bytes:
            raise ImageError("too_many_bytes", f"{path}: {member.size} bytes exceed {self.max_bytes}")
        return archive.read(member)

    def find(self, path: str) -> tuple[Archive, Member] | None:
        """Where a picture lies, None if in no tar. Raises RowRefused `bad_path` for one that could lie nowhere."""
        wanted = _checked(path)
        for number in self._order(wanted):
            index = self._index(number)
            for name in (wanted, wanted.partition("/")[2]):
                if name in index.members:
                    return index.archive, index.members[name]
        return None

    def beside(self, path: str, other: str) -> bool:
        """Whether `other` lies in the tar that holds `path`; no other tar is looked into."""
        found = self.find(path)
        return found is not None and any(
            name in index.members
            for index in self._kept.values()
            if index.archive is found[0]
            for name in (other, other.partition("/")[2])
        )

    def close(self) -> None:
        """Close every tar."""
        while self._kept:
            self._kept.popitem()[1].archive.close()

    def _order(self, path: str) -> list[int]:
        """Tars that may hold the path: those known to have its folder, those named like it, those not seen yet."""
        folders = path.split("/")[:-1]
        known = sorted({number for root in (folders or [""])[:2] for number in self._roots.get(root, ())})
        named = [number for number, name in enumerate(self._names) if name in folders]
        unseen = [number for number in range(len(self.archives)) if number not in self._seen]
        return list(dict.fromkeys([*known, *named, *unseen]))

    def _index(self, number: int) -> _Index:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        if len(self._kept) == INDEXES_IN_MEMORY:
            self._kept.popitem(last=False)[1].archive.close()
        index = self._kept[number] = _Index(Archive(self.archives[number]))
        try:
            for member in index.archive.members():
                index.members.setdefault(member.name.removeprefix("./"), member)
        except ContainerError as error:
            self._errors[number] = error
        for name in index.members:
            self._roots.setdefault(name.partition("/")[0] if "/" in name else "", set()).add(number)
        self._seen.add(number)
        return index


def _checked(path: str) -> str:
    """The path as members are named. Raises RowRefused `bad_path`."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or not path.isprintable() or "\\" in path:
        raise RowRefused("bad_path", f"{path!r:.200} is no path of a picture in a tar")
    return "/".join(parts)


def _stem(url: str) -> str:
    """The name of a tar without `.tar` and what follows."""
    return url.rsplit("/", 1)[-1].partition(".tar")[0]
