"""Files that arrive in a stream's directory, as events of an asset."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from semistream.data_files import Unreadable, list_files

FILES = "semistream://files"  # before the job, in the URI of the asset of its files
POLL = 5.0  # s
FIRST = 10  # names in an event


class FilesTrigger(BaseEventTrigger):
    """Emits an event when new files have arrived in the stream's directory. The files stay there.

    A file counts when it has not changed for ``min_age`` seconds. The asset's state keeps a digest
    of the file names of the last event, so that a restarted triggerer emits an event only if the
    names have changed.
    """

    def __init__(
        self,
        path: str,
        kind: str,
        options: Mapping[str, str] | None = None,
        min_age: float = 0.0,
        poll: float = POLL,
    ):
        super().__init__()
        self.path, self.kind, self.options = path, kind, dict(options or {})
        self.min_age, self.poll = min_age, poll

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("path", "kind", "options", "min_age", "poll")
        return f"{__name__}.{type(self).__name__}", {n: getattr(self, n) for n in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        known: set[str] | None = None
        while True:
            found = await asyncio.to_thread(self.rested)
            if known is None:
                known = found if await self.recall() == digest(found) else set()
            if new := sorted(found - known):
                yield TriggerEvent({"files": len(new), "first": new[:FIRST]})
            if found != known:
                await self.keep(digest(found))
            known = found
            await asyncio.sleep(self.poll)

    def rested(self) -> set[str]:
        """Return the paths of the stream's files that have not changed for ``min_age``."""
        before = time.time() - self.min_age
        return {
            entry.path
            for entry in list_files(self.path, self.options, self.kind)
            if not isinstance(entry, Unreadable) and entry.stat().st_mtime <= before
        }

    async def recall(self) -> str | None:
        if self.asset_state_store is None:
            return None
        return await self.asset_state_store.aget(STATE)

    async def keep(self, names: str) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(STATE, names)


STATE = "files"  # in the asset's state: the digest of the names


def digest(names: Iterable[str]) -> str:
    """Return a digest of names that does not depend on their order."""
    return hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()
