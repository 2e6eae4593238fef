"""The JSON of a run of speed.py as a report for the terminal, as one of the README's tables, and as a plot."""

import re
from pathlib import Path
from statistics import median
from typing import Any

from fusebert.report import Report, Table

TITLES = {"minilm": "MiniLM-L6", "base": "BERT-base", "large": "BERT-large", "mpnet": "MPNet-base",
          "deberta": "DeBERTa-v3-base", "modernbert": "ModernBERT-base", "albert": "ALBERT-base"}  # fmt: skip
PRECISIONS = ("fp32", "bf16", "int8")
LOUD = 0.1  # noise beyond which a run is marked


def report(data: dict[str, Any]) -> Report:
    """What a run found, to be shown."""
    found = [_timings(data, model) for model in _in_order(data, "model")]
    found.append(_streaming(data))
    found += [Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"]))) for t in data["growth"]["tables"]]
    ceiling = {kind: f"{c['giga_per_second']:.0f} by {c['by']}" for kind, c in data["ceiling"].items()}
    notes = tuple(f"{TITLES[m]}: no {name}: {why}" for m, them in data["skipped"].items() for name, why in them.items())
    facts = data["machine"] | {"ceiling_(Gop/s,_GB/s)": ceiling, "worst_cosine_to_stock_fp32": _worst(data)}
    facts["noise"] = _told_noise(data)
    return Report("speed, in interleaved rounds", facts, tuple(found), notes)


def _told_noise(data: dict[str, Any]) -> str:
    """By how much the median call is over the best."""
    noise = median(r["p50_ms"] / r["ms"] for r in data["results"]) - 1
    return f"{noise:.0%}" + (": the machine was busy, measure again" if noise > LOUD else "")


def _in_order(data: dict[str, Any], key: str) -> list[str]:
    return list(dict.fromkeys(result[key] for result in data["results"]))


def _worst(data: dict[str, Any]) -> dict[str, float]:
    every: dict[str, list[float]] = {}
    for cosines in data["cosines"].values():
        for engine, cosine in cosines.items():
            every.setdefault(engine, []).append(cosine)
    return {engine: round(min(cosines), 5) for engine, cosines in every.items()}


def _timings(data: dict[str, Any], model: str) -> Table:
    rows = [
        (
            r["shape"], r["engine"], round(r["ms"], 2), round(r["sequences_per_second"], 1),
            round(r["tokens_per_second"]), round(r["gops"], 1), f"{r['of_ceiling']:.0%}",
            "" if r["ratio"] is None else f"{r['ratio']:.2f}x",
        )
        for r in data["results"] if r["model"] == model
    ]  # fmt: skip
    columns = ("shape", "engine", "ms", "seq/s", "tokens/s", "Gop/s", "of_ceiling", "to_best_rival")
    return Table(TITLES[model], columns, tuple(rows))


def _streaming(data: dict[str, Any]) -> Table:
    """The shortest inputs of each model, where the weights' way from memory counts."""
    rows = []
    for model in _in_order(data, "model"):
        shapes = {r["shape"]: r["tokens_per_second"] * r["ms"] for r in data["results"] if r["model"] == model}
        shortest = min(shapes, key=lambda shape: shapes[shape])
        rows += [
            (TITLES[model], r["shape"], r["engine"], f"{r['weights_of_memory']:.0%}")
            for r in data["results"]
            if r["model"] == model and r["shape"] == shortest and r["ours"]
        ]
    return Table("reading_the_weights", ("model", "shape", "engine", "of_memory's_speed"), tuple(rows))


def markdown(data: dict[str, Any]) -> str:
    """A table for each model: ours, and the best rival of each precision."""
    lines = []
    for model in _in_order(data, "model"):
        results = [r for r in data["results"] if r["model"] == model]
        shapes = list(dict.fromkeys(r["shape"] for r in results))
        names = [f"{s[:-1]}, real lengths" if s.endswith("r") else s for s in shapes]
        lines += ["", f"| {TITLES[model]}, ms | {' | '.join(names)} |", "|---" * (len(shapes) + 1) + "|"]
        for precision in PRECISIONS:
            rivals = [r for r in results if r["precision"] == precision and not r["ours"]]
            for engine in dict.fromkeys(r["engine"] for r in results if r["precision"] == precision and r["ours"]):
                cells = {r["shape"]: _cell(r) for r in results if r["engine"] == engine}
                lines.append(f"| **{engine}** | {' | '.join(cells[s] for s in shapes)} |")
            if rivals:
                best = [min((r for r in rivals if r["shape"] == s), key=lambda r: r["ms"]) for s in shapes]
                cells_of_best = (f"{_rounded(r['ms'])} {r['engine'].removesuffix(' ' + precision)}" for r in best)
                lines.append(f"| best other {precision} | {' | '.join(cells_of_best)} |")
    m = data["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in m["versions"].items() if name != "fusebert")
    ceilings = " / ".join(f"{data['ceiling'][p]['giga_per_second']:.0f}" for p in PRECISIONS)
    facts = f"{m['cpu']}, {m['instruction_set']}, {m['threads']} threads, {m['date']}; noise {_told_noise(data)};"
    return "\n".join([f"{facts} ceiling {ceilings} Gop/s in fp32 / bf16 / int8; {packages}.", *lines])


def _cell(result: dict[str, Any]) -> str:
    ratio = "" if result["ratio"] is None else f", {result['ratio']:.2f}x"
    return f"{_rounded(result['ms'])} ({result['of_ceiling']:.0%}{ratio})"


def _rounded(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def write(readme: Path, data: dict[str, Any]) -> None:
    """Puts the tables between the speed marks of their instruction set; a new one comes before the others."""
    text, isa = readme.read_text(), data["machine"]["instruction_set"]
    marked = f"<!-- speed {isa} -->\n{markdown(data)}\n<!-- /speed {isa} -->\n"
    old = re.search(rf"<!-- speed {isa} -->\n.*?<!-- /speed {isa} -->\n", text, re.DOTALL)
    if old is None and (first := text.find("<!-- speed ")) >= 0:
        readme.write_text(f"{text[:first]}{marked}\n{text[first:]}")
    elif old is None:
        raise SystemExit(f"{readme} has no <!-- speed ... --> marks, so there is no place for the table")
    else:
        readme.write_text(text[: old.start()] + marked + text[old.end() :])


def plot(data: dict[str, Any], path: Path) -> None:
    """Shares of the ceiling: a row of panels per model, a panel per precision, a group of bars per shape."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "font.size": 8}
    from matplotlib import pyplot

    models, here = _in_order(data, "model"), _in_order(data, "precision")
    precisions = [precision for precision in PRECISIONS if precision in here]
    size = (4.6 * len(precisions), 2.6 * len(models))
    figure, axes = pyplot.subplots(len(models), len(precisions), figsize=size, squeeze=False, sharey=True)
    for row, model in zip(axes, models, strict=True):
        for panel, precision in zip(row, precisions, strict=True):
            _draw(panel, [r for r in data["results"] if r["model"] == model and r["precision"] == precision])
            panel.set_title(f"{TITLES[model]} {precision}")
        row[0].set_ylabel("% of the ceiling")
    figure.tight_layout()
    figure.savefig(path)


def _draw(panel: Any, results: list[dict[str, Any]]) -> None:
    """Rivals in greys, ours in colours; the legend stands above the ceiling."""
    shapes = list(dict.fromkeys(r["shape"] for r in results))
    engines = {r["engine"]: r["ours"] for r in results}
    greys = iter(("0.75", "0.6", "0.45", "0.3"))
    width = 0.8 / len(engines)
    for i, (engine, ours) in enumerate(engines.items()):
        heights = [100 * r["of_ceiling"] for r in results if r["engine"] == engine]
        places = [at + (i - (len(engines) - 1) / 2) * width for at in range(len(shapes))]
        colour = ("C1" if engine.endswith("-bf16") else "C0") if ours else next(greys)
        panel.bar(places, heights, width, label=engine, color=colour)
    panel.set_xticks(range(len(shapes)), shapes)
    panel.set(ylim=(0, 140), yticks=range(0, 101, 20))
    panel.grid(axis="y", linewidth=0.3)
    panel.legend(fontsize=6, loc="upper center", ncols=2)
