"""The zoo's list: every exporter output that readers and finder are tested on, as data. Nothing is built here."""

from zoo.describe import (
    EVEN,
    LISTED,
    ODD,
    SMALL,
    WIDE,
    Facts,
    Listed,
    converted,
    hf,
    keras,
    keras2onnx,
    official,
    own,
    stranger,
    stranger_own,
    tf1,
    torch,
)

__all__ = ["LISTED", "Facts", "Listed"]

# torch, transformers 5: attention, opset, folding, exporter
torch("onnx-bert-14-eager")
torch("onnx-bert-14-sdpa", attention="sdpa")
torch("onnx-bert-dynamo-eager", opset="dynamo18", sizes=EVEN)
torch("onnx-bert-dynamo-sdpa", opset="dynamo18", attention="sdpa")
torch("onnx-bert-dynamo-20", opset="dynamo20", attention="sdpa")
torch("onnx-bert-dynamo-static", opset="dynamo18", static=(2, 6))
torch("onnx-bert-9-static", opset=9, static=(3, 7))
torch("onnx-bert-11-eager", opset=11)
torch("onnx-bert-11-unfolded", opset=11, folding=False, sizes=EVEN)
torch("onnx-bert-12-eager", opset=12, sizes=EVEN)
torch("onnx-bert-13-eager", opset=13)
torch("onnx-bert-13-unfolded", opset=13, folding=False)
torch("onnx-bert-14-sdpa-unfolded", attention="sdpa", folding=False)
torch("onnx-bert-17-eager", opset=17)
torch("onnx-bert-17-sdpa", opset=17, attention="sdpa", sizes=EVEN)
torch("onnx-bert-17-unfolded", opset=17, folding=False)
torch("onnx-bert-17-static", opset=17, static=(2, 6))
torch("onnx-bert-14-static-sdpa", attention="sdpa", static=(2, 6))
torch("onnx-bert-1-input", inputs=1)
torch("onnx-bert-1-input-sdpa", inputs=1, attention="sdpa", opset=17)
torch("onnx-bert-2-inputs", inputs=2)
torch("onnx-bert-2-inputs-sdpa", inputs=2, attention="sdpa", opset=17)
torch("onnx-bert-epsilon", config={"layer_norm_eps": 1e-3})
torch("onnx-bert-tanh", activation="gelu_tanh")
torch("onnx-bert-tanh-17", activation="gelu_tanh", act="gelu_pytorch_tanh", opset=17)
torch("onnx-bert-tanh-fast", activation="gelu_tanh", act="gelu_fast")
torch("onnx-bert-tanh-dynamo-20", activation="gelu_tanh", act="gelu_pytorch_tanh", opset="dynamo20")
torch("onnx-bert-erf-python", act="gelu_python")
torch("onnx-bert-relu", activation="relu")
torch("onnx-bert-taps", taps=True)
torch("onnx-bert-fp16-weights", dtype="fp16 weights", opset=17)
torch("onnx-bert-fp16", dtype="fp16", opset=17, tolerance=2e-2)
torch("onnx-bert-fp16-dynamo", dtype="fp16", opset="dynamo18", attention="sdpa", tolerance=2e-2)
# heads and families
torch("onnx-bert-sequence", head="ForSequenceClassification")
torch("onnx-bert-sequence-dynamo", head="ForSequenceClassification", opset="dynamo18", attention="sdpa")
torch("onnx-bert-token", head="ForTokenClassification", attention="sdpa")
torch("onnx-bert-question", head="ForQuestionAnswering")
torch("onnx-bert-masked", head="ForMaskedLM", attention="sdpa", opset=17)
torch("onnx-bert-masked-mean", pool="masked", opset=11)
torch("onnx-bert-masked-mean-sdpa", pool="masked", attention="sdpa", opset=17)
torch("onnx-bert-mean", pool="mean")
torch("onnx-bert-first", pool="first", attention="sdpa")
torch("onnx-roberta", family="roberta")
torch("onnx-roberta-sdpa", family="roberta", attention="sdpa", opset=17)
torch("onnx-roberta-sequence", family="roberta", head="ForSequenceClassification")
torch("onnx-roberta-dynamo", family="roberta", attention="sdpa", opset="dynamo18")
torch("onnx-xlm-roberta", family="xlm-roberta", attention="sdpa")
torch("onnx-distilbert", family="distilbert")
torch("onnx-distilbert-sdpa", family="distilbert", attention="sdpa", opset=17)
torch("onnx-distilbert-sequence", family="distilbert", head="ForSequenceClassification")
torch("onnx-distilbert-dynamo", family="distilbert", attention="sdpa", opset="dynamo18")
torch("onnx-electra", family="electra", config={"embedding_size": 16})
torch("onnx-electra-sequence", family="electra", head="ForSequenceClassification", config={"embedding_size": 16})
for family in ("roberta", "distilbert", "electra"):
    narrow = {"config": {"embedding_size": 16}} if family == "electra" else {}
    torch(f"onnx-{family}-token", family=family, head="ForTokenClassification", attention="sdpa", opset=17, **narrow)
    torch(f"onnx-{family}-question", family=family, head="ForQuestionAnswering", opset=11, **narrow)
# transformers 4
torch("onnx4-bert-eager", version=4)
torch("onnx4-bert-11-eager", version=4, opset=11)
torch("onnx4-bert-sdpa", version=4, attention="sdpa")
torch("onnx4-bert-17-sdpa", version=4, attention="sdpa", opset=17)
torch("onnx4-bert-dynamo-eager", version=4, opset="dynamo18")
torch("onnx4-bert-dynamo-sdpa", version=4, opset="dynamo18", attention="sdpa")
torch("onnx4-distilbert-eager", version=4, family="distilbert")
torch("onnx4-distilbert-sdpa", version=4, family="distilbert", attention="sdpa")
torch("onnx4-distilbert-dynamo", version=4, family="distilbert", opset="dynamo18", attention="sdpa")
torch("onnx4-roberta", version=4, family="roberta")
torch("onnx4-electra", version=4, family="electra", config={"embedding_size": 16})
# plain torch
own("onnx-own", "encoder")
own("onnx-own-einsum", "encoder", style="einsum")
own("onnx-own-unbiased", "encoder", bias=False)
own("onnx-own-narrow-values", "encoder", value=5)
own("onnx-own-native", "native", activation="relu")
own(
    "onnx-pair",
    "pair",
    inputs=("input_ids", "attention_mask", "other_ids", "other_mask"),
    outputs=("left", "right"),
    pair=[SMALL, EVEN],
    facts=(Facts(**SMALL), Facts(**EVEN)),
)
own(
    "onnx-siamese",
    "pair",
    inputs=("input_ids", "attention_mask", "other_ids", "other_mask"),
    outputs=("left", "right"),
    pair=[SMALL],
    facts=(Facts(**SMALL), Facts(**SMALL)),
)
# to be refused
torch("refuse-gpt2", family="gpt2", inputs=2, refused="causal", config={"use_cache": False}, activation="gelu_tanh")
torch(
    "refuse-bert-causal",
    head="LMHeadModel",
    inputs=2,
    refused="causal",
    config={"is_decoder": True, "use_cache": False},
)
torch(
    "refuse-bert-causal-sdpa",
    head="LMHeadModel",
    inputs=2,
    refused="causal",
    attention="sdpa",
    config={"is_decoder": True, "use_cache": False},
)
torch("refuse-bert-relative", version=4, refused="relative", config={"position_embedding_type": "relative_key"})
torch("refuse-t5", family="t5", inputs=2, refused="rms_norm", activation="relu", config={"d_kv": 8})
own("refuse-own-causal", "encoder", refused="causal", causal=True)
own("refuse-own-pre-norm", "encoder", refused="pre_norm", first=True)
own("refuse-native-pre-norm", "native", refused="pre_norm", first=True)
own("refuse-vit", "vision", inputs=("pixel_values",), refused="pre_norm", static=(3, 5))
own("refuse-perceptron", "perceptron", refused="nothing", readers=(), outputs=("embedding",), flat=["embedding"])
# TensorFlow 2, Hugging Face
hf("tf-bert")
hf("tf-bert-keras", form="pretrained")
hf("tf-bert-frozen", form="frozen", sizes=EVEN)
hf("tf-bert-static", static=(2, 6))
hf("tf-bert-tanh", activation="gelu_tanh")
hf("tf-bert-erf-sum", act="gelu_sum")
hf("tf-bert-taps", taps=True)
hf("tf-bert-sequence", head="ForSequenceClassification")
hf("tf-bert-token-frozen", head="ForTokenClassification", form="frozen")
hf("tf-bert-question", head="ForQuestionAnswering")
hf("tf-bert-masked", head="ForMaskedLM")
hf("tf-roberta", family="roberta")
hf("tf-roberta-sequence", family="roberta", head="ForSequenceClassification")
hf("tf-distilbert", family="distilbert")
hf("tf-distilbert-sequence", family="distilbert", head="ForSequenceClassification")
hf("tf-electra", family="electra", config={"embedding_size": 16})
hf("tf-electra-sequence", family="electra", head="ForSequenceClassification", config={"embedding_size": 16})
# tf-models-official
official("tf-official")
official("tf-official-first", outputs=("pooled_output",), sizes=EVEN)
official("tf-official-relu", activation="relu", config={"embedding_width": 16})
official("tf-official-erf", activation="gelu_erf", signatures=2)
official("refuse-official-pre-norm", refused="pre_norm", config={"norm_first": True})
# TensorFlow 1
tf1("tf1-frozen")
tf1("tf1-frozen-static", static=(3, 7))
tf1("tf1-frozen-one-hot", one_hot=True, static=(2, 6), sizes=EVEN)
tf1("tf1-frozen-classifier", classifier=True)
tf1("tf1-text", form="text")
tf1("tf1-text-static", form="text", static=(2, 6), one_hot=True)
tf1("tf1-saved", form="saved_model")
tf1("tf1-saved-static", form="saved_model", static=(2, 6))
tf1("tf1-saved-resource", form="saved_model", resource=True, sizes=EVEN)
tf1("tf1-saved-classifier", form="saved_model", classifier=True, activation="gelu_erf", one_hot=True)
tf1("tf1-frozen-relu", activation="relu", epsilon=1e-3)
# Keras 3
keras("keras-own")
keras("keras-own-relu", activation="relu", sizes=EVEN, epsilon=1e-6)
keras("keras-own-dropout", dropout=0.1)
# ONNX by tf2onnx and in keras2onnx's style
converted("tf2onnx-tf1", "tf1-frozen", maker="tf2onnx", opset=13)
converted("tf2onnx-tf1-11", "tf1-frozen-static", maker="tf2onnx", opset=11)
converted("tf2onnx-tf1-one-hot", "tf1-saved-classifier", maker="tf2onnx", opset=13)
converted("tf2onnx-bert", "tf-bert", maker="tf2onnx", opset=13)
converted("tf2onnx-bert-erf-sum", "tf-bert-erf-sum", maker="tf2onnx", opset=13)
converted("tf2onnx-bert-tanh-17", "tf-bert-tanh", maker="tf2onnx", opset=17)
converted("tf2onnx-bert-sequence", "tf-bert-sequence", maker="tf2onnx", opset=13)
converted("tf2onnx-distilbert", "tf-distilbert", maker="tf2onnx", opset=13)
converted("tf2onnx-roberta", "tf-roberta", maker="tf2onnx", opset=13)
converted("tf2onnx-official", "tf-official", maker="tf2onnx", opset=13)
converted("tf2onnx-keras", "keras-own", maker="tf2onnx", opset=15)
converted("tf2onnx-keras-dropout", "keras-own-dropout", maker="tf2onnx", opset=17)
keras2onnx("keras2onnx-bert")
keras2onnx("keras2onnx-bert-reversed", reversed=True)
keras2onnx("keras2onnx-bert-tanh", activation="gelu_tanh", subtract=True)
# optimised by ONNX Runtime
FUSED = ("Attention", "SkipLayerNormalization", "BiasGelu")
SIZES = {"heads": 3, "hidden": 24, "way": "optimizer"}
converted("ort-basic-bert", "onnx-bert-14-eager", way="session", level="basic")
converted("ort-extended-bert", "onnx-bert-14-eager", way="session", level="extended")
converted("ort-extended-bert-sdpa", "onnx-bert-14-sdpa", way="session", level="extended")
converted("ort-extended-bert-dynamo", "onnx-bert-dynamo-sdpa", way="session", level="extended")
converted("ort-extended-distilbert", "onnx-distilbert", way="session", level="extended")
converted("ort-extended-bert-4", "onnx4-bert-11-eager", way="session", level="extended")
converted("ort-all-bert-tanh", "onnx-bert-tanh", way="session", level="all")
converted("ort-fused-bert", "onnx-bert-14-eager", expects=(*FUSED, "EmbedLayerNormalization"), **SIZES)
converted("ort-partly-bert-sdpa", "onnx-bert-14-sdpa", expects=FUSED[1:], **SIZES)
converted("ort-partly-distilbert-4", "onnx4-distilbert-eager", expects=FUSED[1:], **SIZES)
converted("ort-fused-bert-4", "onnx4-bert-11-eager", expects=(*FUSED, "EmbedLayerNormalization"), **SIZES)
converted("ort-fused-bert-4-sdpa", "onnx4-bert-sdpa", expects=FUSED, **SIZES)
converted("ort-fused-bert-sequence", "onnx-bert-sequence", expects=FUSED, level=1, **SIZES)
converted(
    "ort-fused-bert-mask-index",
    "onnx4-bert-eager",
    expects=FUSED,
    mask_index=True,
    kinds=("right", "full"),
    **SIZES,
)
converted(
    "ort-fused-bert-multi-head",
    "onnx-bert-14-eager",
    expects=("MultiHeadAttention", "SkipLayerNormalization", "BiasGelu"),
    multi_head=True,
    **SIZES,
)
converted("ort-fused-bert-tanh", "onnx-bert-tanh", expects=("Attention", "FastGelu"), **SIZES)
converted(
    "ort-fused-bert-fp16", "onnx4-bert-eager", expects=FUSED, fp16=True, precision="fp16", tolerance=2e-2, **SIZES
)
# quantised; their answers are ONNX Runtime's
converted("int8-dynamic-bert", "onnx-bert-14-eager", way="dynamic", per_channel=False, precision="int8", tolerance=0.3)
converted(
    "int8-dynamic-distilbert", "onnx-distilbert", way="dynamic", per_channel=True, precision="int8", tolerance=0.5
)
converted("int8-qdq-bert", "onnx-bert-14-eager", way="static", per_channel=True, precision="int8", tolerance=0.3)
converted("int8-weights-bert", "onnx-bert-14-eager", way="weights", precision="int8")
# as strangers bring them: both torch exporters, axes fixed or of one sequence, few positions
for exporter, opset in (("script", 17), ("dynamo", "dynamo18")):
    for attention in ("eager", "sdpa"):
        start, how = f"strange-{exporter}-{attention}", {"opset": opset, "attention": attention}
        stranger(f"{start}-length", (2, 9), (0,), **how)
        stranger(f"{start}-one", (1, 9), (), **how)
        stranger(f"{start}-one-free", (1, 9), (1,), **how)
        stranger(f"{start}-from-one", (1, 9), (0, 1), **how)
    stranger(f"strange-{exporter}-wide", (2, 384), (0,), WIDE, 384, opset=opset)
    stranger(f"strange-{exporter}-10-positions", (2, 7), (0, 1), positions=10, opset=opset)
    stranger(f"strange-{exporter}-16-positions", (2, 7), (0, 1), positions=16, opset=opset, attention="sdpa")
    pooled = {"pool": "masked", "opset": opset, "attention": "sdpa"}
    stranger(f"strange-{exporter}-one-pooled", (1, 9), (1,), **pooled)
    stranger(f"strange-{exporter}-length-fp16", (2, 9), (0,), dtype="fp16", tolerance=2e-2, opset=opset)
stranger_own("strange-adapters", "adapted", (Facts(**ODD | {"layers": 1}, epsilon=1e-5),) * 2)
stranger_own("strange-turned", "turned", (Facts(**ODD, epsilon=1e-5),))
for exporter, opset in (("script", 17), ("dynamo", "dynamo18")):
    relative = {"family": "mpnet", "inputs": 2, "refused": "relative positions", "opset": opset}
    stranger(f"refuse-mpnet-{exporter}", (2, 7), (0, 1), **relative)
stranger(
    "refuse-deberta", (2, 7), (0, 1), family="deberta", inputs=2, refused="disentangled", opset="dynamo18",
    config={"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
)  # fmt: skip
# and with tools of others on the way
for way, sources in {
    "sim": ("onnx-bert-14-eager", "onnx-bert-dynamo-sdpa", "strange-script-sdpa-one", "strange-dynamo-eager-length"),
    "slim": ("onnx-bert-14-sdpa", "onnx-bert-dynamo-eager", "strange-script-eager-one", "strange-dynamo-sdpa-one-free"),
    "shuffle": ("onnx-bert-14-sdpa", "strange-dynamo-eager-length"),
}.items():
    for source in sources:
        converted(f"strange-{way}-{source.removeprefix('strange-').removeprefix('onnx-')}", source, way=way)
for source in ("onnx-bert-14-sdpa", "onnx-bert-dynamo-eager"):
    for way, per_channel in (
        ("dynamic", False),
        ("dynamic", True),
        ("qdq", False),
        ("qoperator", False),
        ("qoperator", True),
    ):
        name = f"strange-{way}{'-channels' if per_channel else ''}-{source.removeprefix('onnx-')}"
        converted(name, source, way=way, per_channel=per_channel, precision="int8", tolerance=0.3)
