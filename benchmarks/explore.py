"""The page of explore in a browser, with a model of 24 layers: milliseconds to open a layer, and frames a second while
the drawing is moved, with all layers closed, one open, and everything open.

    python benchmarks/explore.py [MODEL] [--json]

Without MODEL it is TensorFlow's BERT with 24 layers of tiny weights, exported by the tests' makers into build/finder
(`make build/legacy/.installed`)."""

import argparse
import importlib
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from finder import PLACE, make

from fusebert.cli.show import show
from fusebert.explore import Shown, make_server
from fusebert.report import Report, Table

sync_playwright: Any = importlib.import_module("playwright.sync_api").sync_playwright

_OPEN = """([kind, count]) => {
    const pane = panes[0], { groups } = pane.model, took = [];
    const places = groups.flatMap((one, g) => one.kind === kind ? [g] : []).slice(0, count);
    for (const g of places) {
        const begun = performance.now();
        pane.toggle(g);
        document.body.offsetHeight;
        took.push(performance.now() - begun);
    }
    return took;
}"""
_CHOOSE = """() => {
    const pane = panes[0], begun = performance.now();
    pane.choose(pane.model.nodes.length >> 1, true);
    document.body.offsetHeight;
    return performance.now() - begun;
}"""
_PAN = """() => new Promise((done) => {
    const { canvas } = panes[0], times = [];
    const step = (now) => {
        times.push(now);
        canvas.move(times.length % 40 < 20 ? 9 : -9, times.length % 60 < 30 ? 7 : -7);
        if (times.length < 180) requestAnimationFrame(step); else done(times);
    };
    requestAnimationFrame(step);
})"""


def measure(model: Path) -> Report:
    """Serves the model, and measures in the browser."""
    shown = Shown(model)
    server = make_server([shown], 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    rows = []
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = started.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        page.locator("#status").wait_for(state="hidden", timeout=120_000)
        rows.append(("as it opens", None, _frames(page)))
        layers = page.evaluate(_OPEN, ["layer", 24])
        blocks = page.evaluate(_OPEN, ["attention", 1]) + page.evaluate(_OPEN, ["feed-forward", 1])
        rows.append(("24 layers and one layer's blocks open", round(max(layers + blocks), 1), _frames(page)))
        every = [ms for kind in ("attention", "feed-forward") for ms in page.evaluate(_OPEN, [kind, 99])[1:]]
        every += page.evaluate(_OPEN, ["scope", 999])
        page.evaluate("panes[0].canvas.fit()")
        rows.append(("every block open, all in sight", round(max(every), 1), _frames(page)))
        page.evaluate("panes[0].canvas.zoom(8)")
        rows.append(("every block open, near, a node chosen", round(page.evaluate(_CHOOSE), 1), _frames(page)))
        version = started.version
        started.close()
    server.shutdown()
    facts = {"model": model.name, "layers": 24, "nodes": len(shown.data["nodes"]), "browser": f"Chromium {version}"}
    return Report("explore", facts, (Table("page", ("state", "slowest_click_ms", "frames_per_second"), tuple(rows)),))


def _frames(page: Any) -> float:
    """Of the usual frame: the median of the time between two."""
    times = page.evaluate(_PAN)
    return round(1000 / float(median(b - a for a, b in pairwise(times))), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.model is None:
        make(["tf-bert"], [24])
        given.model = PLACE / "tf-bert-24" / "saved_model"
    show(measure(given.model), given.json)


if __name__ == "__main__":
    main()
