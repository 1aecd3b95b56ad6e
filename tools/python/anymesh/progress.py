"""Bars for long work."""

from __future__ import annotations

from typing import Any


class Bar:
    """Shows progress by a class like tqdm's: progress(total=bytes, unit="B", unit_scale=True), .update(bytes), .close().

    Work of less than a fifth of a second shows none.
    """

    def __init__(self, progress: Any) -> None:
        self._make = progress
        self._bar: Any = None
        self._done = self._total = 0

    def __enter__(self) -> Any:
        return self._show if self._make else None

    def __exit__(self, exception: Any, *_: Any) -> None:
        if self._bar is None:
            return
        if exception is None and self._total:
            self._bar.update(self._total - self._done)
        self._bar.close()

    def _show(self, done: int, total: int) -> None:
        if self._bar is None:
            self._total = total
            self._bar = self._make(total=total or None, unit="B", unit_scale=True)
        self._bar.update(done - self._done)
        self._done = done
