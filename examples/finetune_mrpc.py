"""Fine-tunes a BERT-family checkpoint on MRPC (are two sentences paraphrases?), scores it, and saves it in every form
that fusebert reads: a Hugging Face folder, an ONNX file, and, where transformers 4 with TensorFlow is, a SavedModel.

    python examples/finetune_mrpc.py CHECKPOINT --train msr_train.tsv --dev msr_dev.tsv -o my-mrpc

The TSV files have a header and the columns Quality, #1 ID, #2 ID, #1 String, #2 String. Pairs of the dev file that also
stand in the train file are left out of training. `import fusebert.torch` makes the scoring run on the fused encoder;
training runs the original."""

import argparse
import inspect
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

import fusebert.torch

Pair = tuple[str, str, int]


def read(path: Path) -> list[Pair]:
    """The pairs of sentences in a TSV file, with 1 for a paraphrase."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()[1:]
    columns = [line.split("\t") for line in lines if line.strip()]
    return [(first, second, int(quality)) for quality, _, _, first, second in columns]


def batches(pairs: list[Pair], tokenizer: Any, size: int, length: int) -> Iterator[dict[str, torch.Tensor]]:
    """Padded batches with their labels."""
    for start in range(0, len(pairs), size):
        firsts, seconds, labels = zip(*pairs[start : start + size], strict=True)
        texts = tokenizer(
            list(firsts), list(seconds), padding=True, truncation=True, max_length=length, return_tensors="pt"
        )
        yield {**texts, "labels": torch.tensor(labels)}


def train(model: Any, tokenizer: Any, pairs: list[Pair], arguments: argparse.Namespace) -> None:
    """Some epochs of AdamW, with a rate that rises for a tenth of the steps and then falls to zero."""
    steps = arguments.epochs * -(-len(pairs) // arguments.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    model.train()
    for epoch in range(arguments.epochs):
        order = [pairs[i] for i in torch.randperm(len(pairs)).tolist()]
        total, count = 0.0, 0
        for batch in batches(order, tokenizer, arguments.batch_size, arguments.length):
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total, count = total + float(loss), count + 1
        print(f"epoch {epoch + 1}: mean loss {total / max(count, 1):.4f}")


def score(model: Any, tokenizer: Any, pairs: list[Pair], length: int) -> tuple[int, float, float]:
    """Right answers, F1 of the paraphrases, and seconds."""
    model.eval()
    right = hits = claimed = real = 0
    start = time.perf_counter()
    with torch.no_grad():
        for batch in batches(pairs, tokenizer, 32, length):
            labels = batch.pop("labels")
            answers = model(**batch).logits.argmax(-1)
            right += int((answers == labels).sum())
            hits += int((answers * labels).sum())
            claimed, real = claimed + int(answers.sum()), real + int(labels.sum())
    return right, 2 * hits / max(claimed + real, 1), time.perf_counter() - start


def save(model: Any, tokenizer: Any, folder: Path) -> list[Path]:
    """Writes the stock model in all forms and returns where."""
    fusebert.torch.restore(model.eval())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    example = dict(tokenizer("one", "two", return_tensors="pt"))
    # The exporter gives out names in the order of forward's parameters, which is not the tokenizer's.
    names = [name for name in inspect.signature(model.forward).parameters if name in example]
    axes = {0: "batch", 1: "length"}
    torch.onnx.export(
        model, (example,), str(folder / "model.onnx"), dynamo=False, opset_version=17, input_names=names,
        output_names=["logits"], dynamic_axes={**dict.fromkeys(names, axes), "logits": {0: "batch"}},
    )  # fmt: skip
    written = [folder, folder / "model.onnx"]
    if hasattr(transformers, "TFAutoModelForSequenceClassification") and transformers.is_tf_available():
        tensorflow = transformers.TFAutoModelForSequenceClassification.from_pretrained(folder, from_pt=True)
        tensorflow.save(folder / "saved_model")
        tokenizer.save_pretrained(folder / "saved_model" / "assets")
        written.append(folder / "saved_model")
    return written


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--train", type=Path, required=True, help="TSV file to learn from")
    parser.add_argument("--dev", type=Path, required=True, help="TSV file to score on")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--length", type=int, default=128, help="tokens at most")
    parser.add_argument("--samples", type=int, default=None, help="use only so many pairs of each file")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.checkpoint)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(arguments.checkpoint, num_labels=2)
    dev = read(arguments.dev)[: arguments.samples]
    known = {pair[:2] for pair in dev}
    pairs = [pair for pair in read(arguments.train) if pair[:2] not in known][: arguments.samples]
    train(model, tokenizer, pairs, arguments)
    right, f1, seconds = score(model, tokenizer, dev, arguments.length)
    print(f"dev: {right} of {len(dev)} right, accuracy {right / len(dev):.4f}, F1 {f1:.4f}, {seconds:.1f} s")
    for path in save(model, tokenizer, arguments.output):
        print(f"written: {path}")


if __name__ == "__main__":
    main()
