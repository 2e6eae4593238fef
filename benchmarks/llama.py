"""BERT for llama.cpp: a checkpoint as a GGUF file with weights in Q8_0, and calls that answer with first tokens' rows.

llama.cpp answers in JSON text. Rows of all tokens would mostly measure that, so its pooling by the first token is asked
for: the same work in the layers, and one vector a sequence. It computes no padding."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from fusebert.ops.graph import Array

WORDS = 30522


def write_gguf(checkpoint: Path, path: Path) -> None:
    """The checkpoint of a random BERT; its vocabulary is only there because the format asks for one."""
    import gguf

    size = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(size["num_hidden_layers"])
    writer.add_context_length(512)
    writer.add_embedding_length(size["hidden_size"])
    writer.add_feed_forward_length(size["intermediate_size"])
    writer.add_head_count(size["num_attention_heads"])
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"\u2581w{i}" for i in range(5, WORDS))])
    writer.add_token_type_count(2)
    for add, number in (("pad", 0), ("unk", 1), ("bos", 2), ("sep", 3), ("mask", 4)):
        getattr(writer, f"add_{add}_token_id")(number)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, size["num_hidden_layers"])
    for name, values in load_file(checkpoint / "model.safetensors").items():
        to = names.get_name(re.sub(r"^bert\.", "", name), try_suffixes=(".weight", ".bias"))
        if to is None or "pooler" in name:
            continue
        small = values.ndim == 1 or "position" in name or "token_type" in name
        kind = gguf.GGMLQuantizationType.F32 if small else gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(to, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Server:
    """llama.cpp on such a file, inside this process."""

    def __init__(self, path: Path, threads: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_CLS
        params.embd_normalize = -1
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_parallel = 64 * 512, 8192, 8192, 64
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(params)

    def first_tokens(self, rows: list[list[int]]) -> Array:
        """The last layer's row of each sequence's first token."""
        answer: Any = self._server.handle_embeddings({"input": rows, "embd_normalize": -1})
        return np.array([one["embedding"] for one in answer["data"]], np.float32)
