"""What a user could run instead, and ours, behind one face: a model's checkpoint in, calls on a padded batch out.

Every engine gets the form it is best with: ONNX Runtime and OpenVINO the exported graph, dynamic sizes; CTranslate2 and
llama.cpp their own files. Forms are made once and kept beside the checkpoint. What is not installed, or fails, is
skipped by name."""

import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import llama
import numpy as np

import fusebert
from fusebert.engine.native import multiplies_bf16
from fusebert.formats import huggingface
from fusebert.ops.graph import Array
from fusebert.values.precision import PRECISIONS

NAMES = ("input_ids", "attention_mask", "token_type_ids")
Call = Callable[[], Any]
Ready = Callable[[Array, Array], Call]


class Forms:
    """A model in the forms that the rivals read, each made when it is first asked for."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint, self._folder = checkpoint, checkpoint.parent
        self.encoder = huggingface.read(checkpoint).encoder
        self._config = json.loads((checkpoint / "config.json").read_text())
        self.kind = self._config["model_type"]
        self.names = NAMES if self.kind in ("bert", "albert") else NAMES[:2]

    def torch(self) -> Any:
        """Stock PyTorch."""
        return self._stock()

    @cached_property
    def onnx(self) -> Path:
        """As torch exports it."""
        import torch

        names, model = self.names, self._stock(attn_implementation="eager")  # which ONNX Runtime's optimizer knows

        class Rows(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, *given: Any) -> Any:
                return self.model(**dict(zip(names, given, strict=True))).last_hidden_state

        def export(path: Path) -> None:
            ids = torch.ones(2, 16, dtype=torch.int64)
            axes = {name: {0: "batch", 1: "length"} for name in (*names, "rows")}
            options: dict[str, Any] = {"dynamo": False, "opset_version": 17, "input_names": list(names)}
            options |= {"output_names": ["rows"], "dynamic_axes": axes}
            torch.onnx.export(Rows().eval(), (ids, ids, ids * 0)[: len(names)], str(path), **options)

        return self._once("plain.onnx", export)

    def _stock(self, **options: Any) -> Any:
        import transformers

        if self.kind in ("bert", "mpnet", "albert"):
            options["add_pooling_layer"] = False
        auto: Any = transformers.AutoModel
        return auto.from_pretrained(self.checkpoint, **options).eval()

    @cached_property
    def optimized(self) -> Path:
        """By ONNX Runtime's transformers optimizer."""
        from onnxruntime.transformers.optimizer import optimize_model

        sizes = {"num_heads": self._config["num_attention_heads"], "hidden_size": self._config["hidden_size"]}
        source = self.onnx
        return self._once(
            "optimized.onnx", lambda path: optimize_model(str(source), "bert", **sizes).save_model_to_file(str(path))
        )

    @cached_property
    def dynamic(self) -> Path:
        """The optimized graph in ONNX Runtime's dynamic int8."""
        from onnx import TensorProto
        from onnxruntime.quantization import QuantType, quantize_dynamic

        source = str(self.optimized)
        options = {"weight_type": QuantType.QInt8, "extra_options": {"DefaultTensorType": TensorProto.FLOAT}}
        return self._once("dynamic.onnx", lambda path: quantize_dynamic(source, str(path), **options))

    @cached_property
    def quantized(self) -> Path:
        """In OpenVINO's int8, calibrated by nncf on random ids."""
        import nncf
        import openvino

        def quantize(path: Path) -> None:
            nncf.set_log_level(logging.ERROR)
            random = np.random.default_rng(0)
            mask = np.ones((1, 128), np.int64)
            samples = [feed(random.integers(1000, 30000, mask.shape), mask, self.names) for _ in range(32)]
            model = openvino.Core().read_model(self.onnx)
            kind = nncf.ModelType.TRANSFORMER
            made = nncf.quantize(model, nncf.Dataset(samples), model_type=kind, subset_size=len(samples))
            openvino.save_model(made, path, compress_to_fp16=False)

        return self._once("int8.xml", quantize)

    @cached_property
    def ctranslate2(self) -> Path:
        """In CTranslate2's format; its converter asks for a tokenizer."""
        import ctranslate2
        import transformers

        def convert(path: Path) -> None:
            (self.checkpoint / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
            tokenizer: Any = transformers.BertTokenizer
            tokenizer(str(self.checkpoint / "vocab.txt")).save_pretrained(self.checkpoint)
            ctranslate2.converters.TransformersConverter(str(self.checkpoint)).convert(str(path))

        return self._once("ctranslate2", convert)

    @cached_property
    def gguf(self) -> Path:
        """In llama.cpp's format, weights in Q8_0."""
        return self._once("q8_0.gguf", lambda path: llama.write_gguf(self.checkpoint, path))

    def _once(self, name: str, make: Callable[[Path], object]) -> Path:
        """The file or folder, made under another name first: one that is there is whole."""
        path = self._folder / name
        if not path.exists():
            half = path.with_stem("half")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                make(half)
            for made in self._folder.glob("half*"):
                made.rename(made.with_stem(path.stem))
        return path


def feed(ids: Array, mask: Array, names: Sequence[str] = NAMES) -> dict[str, Array]:
    """The inputs by name."""
    return dict(zip(names, (ids, mask, np.zeros_like(ids)), strict=False))


def ours(precision: str, forms: Forms, threads: int) -> Ready:
    """fusebert, on BERT's exported graph, which has no pooler; its checkpoint has one."""
    model = fusebert.load(forms.onnx if forms.kind == "bert" else forms.checkpoint, precision, threads)

    def ready(ids: Array, mask: Array) -> Call:
        return lambda: model.run(ids, mask, padding="skip")["last_hidden_state"]

    return ready


def torch(precision: str, forms: Forms, threads: int) -> Ready:
    """Stock PyTorch."""
    import torch

    torch.set_num_threads(threads)
    model = forms.torch().to({"fp32": torch.float32, "bf16": torch.bfloat16}[precision])

    def ready(ids: Array, mask: Array) -> Call:
        given = {name: torch.from_numpy(array) for name, array in feed(ids, mask, forms.names).items()}

        def call() -> Any:
            with torch.inference_mode():
                return model(**given).last_hidden_state.float().numpy()

        return call

    return ready


def onnxruntime(form: str, forms: Forms, threads: int) -> Ready:
    """ONNX Runtime on one of the forms."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(getattr(forms, form), options, providers=["CPUExecutionProvider"])

    def ready(ids: Array, mask: Array) -> Call:
        given = feed(ids, mask, forms.names)
        return lambda: session.run(None, given)[0]

    return ready


def openvino(precision: str, forms: Forms, threads: int) -> Ready:
    """OpenVINO; what int8 leaves in floats is in the type it chooses itself."""
    import openvino

    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    if precision != "int8":
        settings["INFERENCE_PRECISION_HINT"] = {"fp32": "f32", "bf16": "bf16"}[precision]
    form = forms.quantized if precision == "int8" else forms.onnx
    request = openvino.Core().compile_model(form, "CPU", settings).create_infer_request()

    def ready(ids: Array, mask: Array) -> Call:
        given = feed(ids, mask, forms.names)
        return lambda: request.infer(given, share_inputs=True)[0]

    return ready


def ctranslate2(precision: str, forms: Forms, threads: int) -> Ready:
    """CTranslate2, which takes rows without padding."""
    import ctranslate2

    encoder = ctranslate2.Encoder(str(forms.ctranslate2), compute_type=precision, intra_threads=threads)

    def ready(ids: Array, mask: Array) -> Call:
        rows = [row[: int(kept.sum())].tolist() for row, kept in zip(ids, mask, strict=True)]
        return lambda: np.asarray(encoder.forward_batch(rows).last_hidden_state)

    return ready


def llama_cpp(forms: Forms, threads: int) -> Ready:
    """llama.cpp, which takes rows without padding and answers with the first token's row of each."""
    server = llama.Server(forms.gguf, threads)

    def ready(ids: Array, mask: Array) -> Call:
        rows = [row[: int(kept.sum())].tolist() for row, kept in zip(ids, mask, strict=True)]
        return lambda: server.first_tokens(rows)

    return ready


@dataclass(frozen=True)
class Engine:
    """A way to run a model: its name, the precision it competes in, and whether it computes padding."""

    name: str
    precision: str
    package: str
    pads: bool
    make: Callable[[Forms, int], Ready]

    @property
    def ours(self) -> bool:
        """Whether it is fusebert."""
        return self.package == "fusebert"


def engines() -> list[Engine]:
    """All that this machine's instructions make sense for; stock fp32 first: others are checked against it."""
    halves = ["bf16"] if multiplies_bf16() else []  # elsewhere frameworks only emulate it
    found = [Engine(f"torch {p}", p, "torch", True, partial(torch, p)) for p in ["fp32", *halves]]
    for name, precision, form in (("fp32", "fp32", "onnx"), ("optimizer fp32", "fp32", "optimized"),
                                  ("dynamic int8", "int8", "dynamic")):  # fmt: skip
        found.append(Engine(f"onnxruntime {name}", precision, "onnxruntime", True, partial(onnxruntime, form)))
    found += [Engine(f"openvino {p}", p, "openvino", True, partial(openvino, p)) for p in ["fp32", *halves, "int8"]]
    found.append(Engine("ctranslate2 int8", "int8", "ctranslate2", False, partial(ctranslate2, "int8")))
    found.append(Engine("llama.cpp int8", "int8", "xllamacpp", False, llama_cpp))
    return found + [
        Engine(f"fusebert {p}", p.removesuffix("-bf16"), "fusebert", False, partial(ours, p)) for p in PRECISIONS
    ]


def versions() -> dict[str, str]:
    """Of the packages that are installed."""
    found = {}
    for package in ("fusebert", "torch", "transformers", "onnxruntime", "openvino", "nncf", "ctranslate2",
                    "xllamacpp"):  # fmt: skip
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
