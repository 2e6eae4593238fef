"""Where an encoder's time goes: each product of a layer alone, as a share of the ceiling, on one thread and on all; and
the steps of the layers as the engine counts them.

    python benchmarks/kernels.py [--model minilm,base,large] [--rows 16,128,1024] [--shapes 1x16,8x128] [--json]

Products are measured by a program of the core's own sources (kernels/products.cc), built into build/kernels."""

import argparse
import subprocess
import sys
from pathlib import Path

from models import SIZES, checkpoint, inputs

import fusebert
from fusebert.cli.show import show
from fusebert.engine.native import cores, isa
from fusebert.report import Report, Table
from fusebert.values.precision import PRECISIONS

ROOT = Path(__file__).parents[1]


def build() -> Path:
    """The program, made again if a source changed."""
    place, tools = ROOT / "build" / "kernels", Path(sys.executable).parent
    configure = [tools / "cmake", "-S", ROOT, "-B", place, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    configure += ["-DFUSEBERT_PYTHON=OFF", "-DFUSEBERT_BENCHMARKS=ON"]
    for command in (configure, [tools / "cmake", "--build", place, "--target", "products"]):
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(done.stdout)
    return place / "products"


def products(models: list[str], rows: str, threads: int, rounds: int) -> list[Table]:
    """Every product, and its share of the ceiling of the same run."""
    sizes = [f"{name}:{SIZES[name]['hidden_size']}:{SIZES[name]['intermediate_size']}" for name in models]
    command = [str(build()), str(rounds), str(threads), rows, *sizes]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [line.split() for line in told.splitlines()]
    ceilings = {(line[1], line[2]): float(line[3]) for line in lines if line[0] == "ceiling"}
    found: dict[str, list[tuple[str | int | float, ...]]] = {name: [] for name in models}
    for _, model, name, count, outputs, inner, precision, used, seconds in (x for x in lines if x[0] == "product"):
        speed = 2 * int(count) * int(outputs) * int(inner) / float(seconds)
        share = f"{speed / ceilings[precision, used]:.0%}"
        size = f"{count}x{outputs}x{inner}"
        found[model].append((name, size, precision, int(used), round(speed / 1e9, 1), share))
    columns = ("product", "rows x outputs x inputs", "precision", "threads", "Gop/s", "of ceiling")
    return [Table(f"{name}:_products", columns, tuple(measured)) for name, measured in found.items()]


def steps(name: str, shapes: list[str], threads: int, rounds: int) -> Table:
    """Milliseconds of each step in all layers together, of the quickest of some runs."""
    folder = checkpoint(name, ROOT / "build" / "speed" / name / "checkpoint")
    found = []
    for precision in PRECISIONS:
        model = fusebert.load(folder, precision, threads)
        for shape in shapes:
            ids, mask = inputs(shape)
            profiles = [model.profile(ids, mask) for _ in range(rounds + 1)]
            best = min(profiles, key=lambda profile: sum(profile.values()))
            whole = sum(best.values())
            spent = [f"{1e3 * seconds:.3g} ({seconds / whole:.0%})" for seconds in best.values()]
            found.append((shape, precision, *spent))
    return Table(f"{name}:_milliseconds_of_each_step", ("shape", "precision", *best), tuple(found))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=",".join(SIZES))
    parser.add_argument("--rows", default="16,128,1024")
    parser.add_argument("--shapes", default="1x16,1x128,8x128,1x384,32x128r")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = given.model.split(",")
    tables = products(names, given.rows, given.threads, given.rounds)
    tables += [steps(name, given.shapes.split(","), given.threads, given.rounds) for name in names]
    show(Report("kernels", {"instruction_set": isa(), "threads": given.threads}, tuple(tables)), given.json)


if __name__ == "__main__":
    main()
