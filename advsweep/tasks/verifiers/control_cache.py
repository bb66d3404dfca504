"""Results of negative controls on disk: those of a thousand problems take a minute."""

from __future__ import annotations

import contextlib
import hashlib

from advsweep.local_files import cache_folder, make_private_folder, replace_file


class VerdictCache:
    """Whether something holds, by the content that it depends on.

    Args:
        kind: the name of the folder in the cache folder.
        content: what the result depends on.
    """

    def __init__(self, kind: str, content: str) -> None:
        digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
        self._file = cache_folder() / kind / digest[:2] / digest

    def read(self) -> bool | None:
        """Return the result; None if it is not known."""
        try:
            return {"yes": True, "no": False}.get(self._file.read_text())
        except OSError:
            return None

    def write(self, result: bool) -> None:
        """Keep a result; where the folder cannot be written to, it is found anew each time."""
        with contextlib.suppress(OSError):
            make_private_folder(self._file.parent)
            replace_file(self._file, "yes" if result else "no")
