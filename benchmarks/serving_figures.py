"""The JSON of a run of serving.py as a report for the terminal, and as the tables of docs/serving.md."""

import re
from pathlib import Path
from typing import Any

from fusebert.report import Report, Table

TITLES = {"fusebert": "**fusebert serve**", "fastapi": "FastAPI, a call a request", "mosec": "mosec, batches of 32",
          "litserve": "LitServe, batches of 32", "triton": "Triton, Python backend, batches of 32"}  # fmt: skip
SIZES = {"minilm": "MiniLM-L6", "base": "BERT-base"}
COLUMNS = ("server", "idle_p50_ms", "idle_p99_ms", "closed_loop/s", "closed_p50_ms", "closed_p99_ms", "CPU_ms",
           "highest_rate/s", "in_bound/s_at_twice", "refused_at_twice", "refusal_p99_ms", "backlog_s",
           "MB", "ready_s", "cosine")  # fmt: skip
_MARKS = re.compile(r"(<!-- serving -->\n).*?(<!-- /serving -->\n)", re.DOTALL)


def best(own: dict[str, Any]) -> dict[str, Any]:
    """The round with the most answers."""
    found: dict[str, Any] = max(own["rounds"], key=lambda one: one["closed"]["rate"])
    return found


def ratios(data: dict[str, Any]) -> dict[str, float]:
    """What fusebert promises, as numbers."""
    servers = data["servers"]
    ours = servers.get("fusebert")
    if not ours:
        return {}
    offline = {name: max(one["rate"] for one in found) for name, found in data["offline"].items() if found}
    closed, highest = best(ours)["closed"]["rate"], ours["highest"]["rate"]
    single = min(one["one_text_ms"] for one in data["offline"]["minilm"])
    found = {
        "closed loop to offline, MiniLM int8": closed / offline["minilm"],
        "closed loop to offline, BERT-base int8": max(one["closed"]["rate"] for one in data["base"]) / offline["base"],
        "in bound at twice the load, to the highest rate": ours["overload"]["good_per_second"] / max(highest, 1e-9),
        "ready with BERT-base, s": min(one["ready_seconds"] for one in data["base"]),
        "idle over encode, ms": min(one["idle_ms_p50"] for one in ours["rounds"]) - single,
        "interactive p99 beside bulk, ms": ours["two_lanes"]["p99"],
        "bulk beside interactive, to bulk alone": ours["two_lanes"]["bulk_texts_per_second"]
        / ours["two_lanes"]["bulk_alone_texts_per_second"],
    }
    if rivals := [own for name, own in servers.items() if name != "fusebert" and "highest" in own]:
        found["closed loop to the best rival"] = closed / max(best(own)["closed"]["rate"] for own in rivals)
        found["highest rate to the best rival"] = highest / max(1e-9, *(own["highest"]["rate"] for own in rivals))
    return {name: round(value, 3) for name, value in found.items()}


def _row(name: str, own: dict[str, Any]) -> tuple[Any, ...]:
    top, over, highest = best(own), own.get("overload"), own.get("highest")
    closed = top["closed"]
    cells = [
        TITLES.get(name, name), *(round(min(one[f"idle_ms_p{p}"] for one in own["rounds"]), 1) for p in (50, 99)),
        round(closed["rate"]), round(closed["p50"]), round(closed["p99"]), round(top["cpu_ms"], 2),
        round(highest["rate"]) if highest else "",
    ]  # fmt: skip
    if over:
        refusal = over["refused_after_ms_p99"]
        cells += [
            round(over["good_per_second"]), f"{over['refused'] / max(1, over['requests']):.0%}",
            "" if refusal is None else round(refusal, 1), round(over["backlog_seconds"], 1),
        ]  # fmt: skip
    else:
        cells += [""] * 4
    ready = min(one["ready_seconds"] for one in own["rounds"])
    return (*cells, round(top["memory_mb"]), round(ready, 2), round(top["cosine"], 4))


def tables(data: dict[str, Any]) -> list[Table]:
    """Servers, promises, reranking."""
    rows = tuple(_row(name, own) for name, own in data["servers"].items())
    found = [Table("servers", COLUMNS, rows)]
    if kept := ratios(data):
        found.append(Table("ratios", ("what", "value"), tuple(kept.items())))
    if reranked := data.get("rerank"):
        ways = list(reranked[0]["seconds"])
        lines = tuple(
            (f"{SIZES[one['model']]}, {one['tokens']} tokens", *(_seconds(one["seconds"][way]) for way in ways))
            for one in reranked
        )
        found.append(Table("seconds_for_40_pairs", ("pairs", *ways), lines))
    return found


def _seconds(value: float) -> str:
    return f"{value:.3g}"


def report(data: dict[str, Any]) -> Report:
    """What a run found, to be shown."""
    facts = {**data["machine"], "bound_ms": data["bound_ms"], "clients": data["clients"]}
    notes = tuple(f"no {name}: {why}" for name, why in data["skipped"].items())
    return Report("serving, in turns", facts, tuple(tables(data)), notes)


def markdown(data: dict[str, Any]) -> str:
    """The tables with a line about the machine."""
    machine = data["machine"]
    named = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"{machine['instruction_set']}, {machine['cores']} cores for server and generator, {machine['date']}; "
        f"MiniLM-L6 int8, {data['clients']} clients, bound {data['bound_ms']:g} ms; {named}."
    ]
    for table in tables(data):
        lines += ["", "| " + " | ".join(name.replace("_", " ") for name in table.columns) + " |"]
        lines += ["|---" * len(table.columns) + "|"]
        lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join([*lines, ""])


def write(document: Path, data: dict[str, Any]) -> None:
    """Puts the tables between the document's marks."""
    text = document.read_text()
    if not _MARKS.search(text):
        raise SystemExit(f"{document} has no <!-- serving --> marks, so there is no place for the tables")
    document.write_text(_MARKS.sub(lambda found: found[1] + markdown(data) + found[2], text))
