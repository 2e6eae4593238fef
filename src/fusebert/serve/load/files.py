"""What a load test leaves behind: the histogram as a log that HdrHistogram's tools read, a plot of the percentiles, and
the accuracy as a number. What cannot be written is refused before the load begins."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats import write

_LOG = b"#[Histogram log format version"
_IMAGES = {".png": b"\x89PNG", ".svg": b"<?xml"}


@dataclass(frozen=True)
class Files:
    """Where to write what, if anywhere; `overwrite` replaces what an earlier test wrote."""

    histogram: Path | None = None
    plot: Path | None = None
    accuracy: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be written."""
        if self.plot:
            if self.plot.suffix not in _IMAGES:
                raise FusebertError(f"{self.plot} is neither .png nor .svg; a plot is one of these")
            try:
                import matplotlib  # noqa: F401
            except ImportError:
                raise FusebertError("a plot needs matplotlib: pip install 'fusebert[plot]'") from None
        for path in (self.histogram, self.plot, self.accuracy):
            if path:
                write.check(path, self._replaces)

    def write_histogram(self, histogram: Any, seconds: float) -> None:
        """One interval of a histogram log, in microseconds."""
        from hdrh.log import HistogramLogWriter

        text, now = io.StringIO(), time.time()
        writer = HistogramLogWriter(text)
        writer.output_log_format_version()
        writer.output_base_time(0)
        writer.output_legend()
        writer.output_interval_histogram(histogram, now - seconds, now, max_value_unit_ratio=1000.0)
        self._write(self.histogram, text.getvalue().encode())

    def write_accuracy(self, accuracy: float) -> None:
        """The share of right answers."""
        self._write(self.accuracy, f"{accuracy:.4f}\n".encode())

    def write_plot(self, title: str, histograms: Mapping[str, Any], bound: float | None) -> None:
        """Latencies over percentiles, each nine as wide as the one before, a line for each histogram."""
        if self.plot is None or not any(histogram.get_total_count() for histogram in histograms.values()):
            return
        from matplotlib.figure import Figure

        figure = Figure((7, 4), layout="constrained")
        axes = figure.add_subplot()
        for name, histogram in histograms.items():
            steps = [
                (1 / (1 - step.percentile_level_iterated_to / 100), step.value_iterated_to / 1e3)
                for step in histogram.get_percentile_iterator(10)  # which is the same object every time
                if step.percentile_level_iterated_to < 100
            ]
            axes.plot(*zip(*steps, strict=True), label=name)
        if bound is not None:
            axes.axhline(bound * 1e3, color="gray", linestyle="--", label=f"{bound * 1e3:g} ms")
        axes.set_xscale("log")
        axes.set_xticks([2, 10, 100, 1000], ["50 %", "90 %", "99 %", "99.9 %"])
        axes.set(title=title, xlabel="percentile", ylabel="ms")
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)
        image = io.BytesIO()
        figure.savefig(image, format=self.plot.suffix[1:], dpi=150)
        self._write(self.plot, image.getvalue())

    @property
    def _replaces(self) -> write.Kind | None:
        return _is_ours if self.overwrite else None

    def _write(self, path: Path | None, content: bytes) -> None:
        if path:
            with write.file(path, self._replaces) as file:
                file.write(content)


def _is_ours(path: Path) -> bool:
    """Whether there is a file of a kind that is written here."""
    try:
        with path.open("rb") as file:
            begin = file.read(64)
    except OSError:
        return False
    return begin.startswith((_LOG, *_IMAGES.values())) or begin.strip().replace(b".", b"", 1).isdigit()
