"""One BERT in ONNX Runtime: as exported, by its own transformers optimizer, by its dynamic int8, as fusebert's stock
target, and with the fused operator; interleaved in one run, equal threads.

    python benchmarks/onnx_targets.py [--model minilm|base] [--shapes 1x16,1x128,8x128,8x128r] [--json]"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from modes import SIZES, inputs

import fusebert
from fusebert.engine import cores, isa
from fusebert.measure.timing import interleave
from fusebert.onnxruntime import session
from fusebert.report import Report, Table
from fusebert.show import show


def export(name: str, path: Path) -> None:
    """A random BERT with a pooler, by torch's older exporter."""
    import torch
    import transformers

    torch.manual_seed(0)
    config: Any = transformers.BertConfig
    bert: Any = transformers.BertModel

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = bert(config(**SIZES[name], attn_implementation="eager")).eval()

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            answers = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return answers.last_hidden_state, answers.pooler_output

    example = torch.ones(2, 9, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        Wrapped(), (example, example, example * 0), str(path), dynamo=False, opset_version=17, input_names=names,
        output_names=["hidden", "pooled"], dynamic_axes={n: {0: "batch", 1: "length"} for n in names},
    )  # fmt: skip


def variants(name: str, folder: Path) -> dict[str, Path]:
    """The model's forms by name."""
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    plain = folder / "plain.onnx"
    export(name, plain)
    made = {"onnxruntime": plain}
    heads, hidden = SIZES[name]["num_attention_heads"], SIZES[name]["hidden_size"]
    upstream = optimize_model(str(plain), "bert", num_heads=heads, hidden_size=hidden)
    made["its optimizer"] = folder / "upstream.onnx"
    upstream.save_model_to_file(str(made["its optimizer"]))
    made["its dynamic int8"] = folder / "dynamic.onnx"
    quantize_dynamic(str(plain), str(made["its dynamic int8"]))
    for label, target, precision in (
        ("stock target", "stock-onnxruntime", "fp32"),
        ("stock target int8", "stock-onnxruntime", "int8"),
        *((f"fused {precision}", "onnxruntime", precision) for precision in ("fp32", "bf16", "int8", "int8-bf16")),
    ):
        made[label] = folder / f"{label.replace(' ', '-')}.onnx"
        fusebert.optimize(plain, made[label], precision, target, verify=False)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("minilm", "base"), default="minilm")
    parser.add_argument("--shapes", default="1x16,1x128,8x128,8x128r")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        import onnxruntime

        options = onnxruntime.SessionOptions
        running = {}
        for label, path in variants(given.model, Path(name)).items():
            settings = options()
            settings.intra_op_num_threads = cores()
            running[label] = session(path, settings)
        for shape in given.shapes.split(","):
            ids, mask = inputs(shape)
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            calls = {label: partial(one.run, None, feeds) for label, one in running.items()}
            timings = interleave(calls, given.rounds, show=not given.json)
            plain = timings["onnxruntime"].best
            rows += [(shape, label, round(t.best, 2), round(plain / t.best, 2)) for label, t in timings.items()]
    table = Table("times", ("shape", "engine", "ms", "against plain"), tuple(rows))
    show(Report(f"{given.model} in ONNX Runtime, {cores()} threads, {isa()}", {}, (table,)), given.json)


if __name__ == "__main__":
    main()
