"""How an entry of the zoo is described: the facts a finder must report, and the recipe for the maker script.

One function per kind of model; each call adds a row to LISTED. catalogue.py makes the calls.
"""

from dataclasses import dataclass, field, replace

from zoo.cases import KINDS, NAMES, POSITIONS

SMALL = {"layers": 3, "hidden": 24, "heads": 3, "inner": 56}
EVEN = {"layers": 3, "hidden": 40, "heads": 4, "inner": 56}
ODD = {"layers": 2, "hidden": 52, "heads": 4, "inner": 60}
WIDE = {
    "layers": 1,
    "hidden": 260,
    "heads": 4,
    "inner": 64,
}  # of which a probe of 384 tokens has more than 2^20 numbers
TORCH_ACT = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


@dataclass(frozen=True)
class Facts:
    """What a finder must say about one encoder."""

    layers: int
    hidden: int
    heads: int
    inner: int
    activation: str = "gelu_erf"
    epsilon: float = 1e-12


@dataclass(frozen=True)
class Listed:
    """One model of the zoo; zoo.Entry adds making it, its inputs and its outputs."""

    name: str
    maker: str  # which process makes it: a key of zoo.SCRIPTS
    file: str  # model.onnx, saved_model (a folder), model.pb, model.pbtxt
    family: str
    encoders: tuple[Facts, ...]
    ids: str = NAMES[0]  # names in inputs(), None where the model has no such input
    mask: str | None = NAMES[1]
    types: str | None = NAMES[2]
    readers: tuple[str, ...] = ()  # who reads the encoder's output: positions, first, masked_mean, mean
    kinds: tuple[str, ...] = KINDS  # the masks it can be given
    stops: str = ""  # words of the miss beside the encoders, where more layers follow
    refused: str | None = None  # why a finder must refuse it: causal, relative, pre_norm, rms_norm, nothing
    precision: str = "fp32"
    tolerance: float = 1e-4  # of scale, between the saved outputs and an exact engine's
    source: str | None = None  # the entry this one was converted from
    recipe: dict = field(default_factory=dict, compare=False, repr=False)

    @property
    def way(self) -> str:
        """How it is converted; models of one maker and way are made together."""
        return self.recipe.get("way", self.name if self.source else "")


HEADS = {  # outputs and who reads the encoder
    "Model": (("last_hidden_state", "pooler_output"), ("positions", "first")),
    "ForSequenceClassification": (("logits",), ("first",)),
    "ForTokenClassification": (("logits",), ("positions",)),
    "ForQuestionAnswering": (("start_logits", "end_logits"), ("positions",)),
    "ForMaskedLM": (("logits",), ("positions",)),
    "LMHeadModel": (("logits",), ("positions",)),
}
NO_POOLER, NO_TYPES = ("distilbert", "electra", "gpt2", "t5", "deberta"), ("distilbert", "roberta", "xlm-roberta")
EPSILON = {"roberta": 1e-5, "xlm-roberta": 1e-5}  # those families' checkpoints; the classes' own default is 1e-12
LISTED: list[Listed] = []


def torch(
    name: str,
    family: str = "bert",
    head: str = "Model",
    attention: str = "eager",
    opset: int | str = 14,
    sizes: dict = SMALL,
    activation: str = "gelu_erf",
    inputs: int = 3,
    version: int = 5,
    pool: str | None = None,
    static: tuple[int, int] | None = None,
    taps: bool = False,
    refused: str | None = None,
    tolerance: float = 1e-4,
    config: dict | None = None,
    **more,
) -> None:
    """A stock transformers model by torch.onnx.export; opset "dynamo18" means the newer exporter."""
    outputs, readers = HEADS[head]
    if family in NO_TYPES:
        inputs = min(inputs, 2)
    if head == "Model" and family in NO_POOLER:
        outputs, readers = outputs[:1], readers[:1]
    if pool:
        outputs, readers = ("embedding",), ({"masked": "masked_mean"}.get(pool, pool),)
    if taps:
        outputs = tuple(f"hidden_{i}" for i in range(sizes["layers"])) + outputs
    config = dict(config or {})
    if family in EPSILON:
        config |= {"layer_norm_eps": EPSILON[family]}
    epsilon = config.get("layer_norm_eps", 1e-12)
    dynamo = str(opset).startswith("dynamo")
    names = {3: NAMES, 2: NAMES[:2], 1: NAMES[:1]}[inputs]
    kinds = KINDS if inputs > 1 else ("full",)
    recipe = {
        "family": family,
        "head": head,
        "attention": attention,
        "exporter": "dynamo" if dynamo else "old",
        "opset": int(str(opset).removeprefix("dynamo")),
        "sizes": sizes,
        "act": TORCH_ACT[activation],
        "inputs": names,
        "outputs": outputs,
        "pool": pool,
        "static": static,
        "config": config,
        "pad": 1 if "roberta" in family else 0,
        "kinds": kinds,
        "flat": [o for o in outputs if o in ("pooler_output", "embedding") or head == "ForSequenceClassification"],
        **more,
    }
    entry = Listed(
        name,
        f"torch{version}",
        "model.onnx",
        family,
        () if refused else (Facts(**sizes, activation=activation, epsilon=epsilon),),
        mask=NAMES[1] if inputs > 1 else None,
        types=NAMES[2] if inputs > 2 else None,
        readers=readers,
        kinds=kinds,
        refused=refused,
        precision="fp16" if more.get("dtype") else "fp32",
        tolerance=tolerance,
        recipe=recipe,
    )
    LISTED.append(entry)


def hf(
    name: str,
    family: str = "bert",
    head: str = "Model",
    form: str = "saved_model",
    sizes: dict = SMALL,
    activation: str = "gelu_erf",
    taps: bool = False,
    static: tuple[int, int] | None = None,
    config: dict | None = None,
    act: str | None = None,
) -> None:
    """A Hugging Face TensorFlow 2 model (transformers 4)."""
    outputs, readers = HEADS[head]
    if head == "Model" and family in NO_POOLER:
        outputs, readers = outputs[:1], readers[:1]
    if taps:
        outputs = (*outputs, "hidden_states")
    types = family not in NO_TYPES
    config = dict(config or {}) | ({"output_hidden_states": True} if taps else {})
    if family in EPSILON:
        config |= {"layer_norm_eps": EPSILON[family]}
    recipe = {
        "source": "hf",
        "family": family,
        "head": head,
        "form": form,
        "sizes": sizes,
        "act": act or TORCH_ACT[activation],
        "inputs": NAMES if types else NAMES[:2],
        "outputs": outputs,
        "static": static,
        "config": config,
        "pad": 1 if "roberta" in family else 0,
        "kinds": KINDS,
    }
    facts = Facts(**sizes, activation=activation, epsilon=config.get("layer_norm_eps", 1e-12))
    file = "model.pb" if form == "frozen" else "saved_model"
    entry = Listed(
        name, "tensorflow", file, family, (facts,), types=NAMES[2] if types else None, readers=readers, recipe=recipe
    )
    LISTED.append(entry)


def tf1(name: str, form: str = "frozen", sizes: dict = SMALL, activation: str = "gelu_tanh", **more) -> None:
    """The first public code's graph under tf.compat.v1."""
    classifier = more.get("classifier", False)
    outputs = ("probabilities",) if classifier else ("sequence_output", "pooled_output")
    inputs = ("input_ids", "input_mask", "segment_ids")
    recipe = {"source": "tf1", "form": form, "sizes": sizes, "act": activation, "inputs": inputs, "outputs": outputs}
    recipe |= {"kinds": KINDS, **more}
    file = {"frozen": "model.pb", "text": "model.pbtxt", "saved_model": "saved_model"}[form]
    facts = Facts(**sizes, activation=activation, epsilon=more.get("epsilon", 1e-12))
    readers = ("first",) if classifier else ("positions", "first")
    LISTED.append(
        Listed(name, "tensorflow", file, "bert", (facts,), *inputs, readers=readers, recipe=recipe),
    )


def own(
    name: str,
    model: str,
    sizes: dict = SMALL,
    inputs: tuple[str, ...] = NAMES[:2],
    refused: str | None = None,
    activation: str = "gelu_erf",
    readers: tuple[str, ...] = ("positions",),
    static: tuple[int, int] | None = None,
    outputs: tuple[str, ...] = ("last_hidden_state",),
    facts: tuple[Facts, ...] | None = None,
    **more,
) -> None:
    """A plain torch model of makers/own.py."""
    masked = "attention_mask" in inputs
    recipe = {"own": model, "sizes": sizes, "act": activation.split("_")[0], "inputs": inputs, "outputs": outputs}
    recipe |= {"exporter": "old", "opset": 17, "static": static, "kinds": KINDS if masked else ("full",), "flat": []}
    if refused is None and facts is None:
        facts = (Facts(**sizes, activation=activation, epsilon=1e-5),)
    entry = Listed(
        name,
        "torch5",
        "model.onnx",
        "own",
        facts or (),
        ids=inputs[0],
        mask=NAMES[1] if masked else None,
        types=None,
        readers=readers,
        kinds=KINDS if masked else ("full",),
        refused=refused,
        recipe=recipe | more,
    )
    LISTED.append(entry)


def official(name: str, activation: str = "gelu_tanh", sizes: dict = SMALL, refused: str | None = None, **more) -> None:
    """tf-models-official's encoder."""
    layers = tuple(f"encoder_outputs_{i}" for i in range(sizes["layers"]))
    outputs = more.pop("outputs", ("default", *layers, "pooled_output", "sequence_output"))
    inputs = ("input_word_ids", "input_mask", "input_type_ids")
    recipe = {"source": "official", "sizes": sizes, "act": activation, "outputs": outputs, "kinds": KINDS, **more}
    facts = () if refused else (Facts(**sizes, activation=activation),)
    readers = ("first",) if outputs == ("pooled_output",) else ("positions", "first")
    entry = Listed(name, "tensorflow", "saved_model", "bert", facts, *inputs, readers, refused=refused, recipe=recipe)
    LISTED.append(entry)


def converted(name: str, source: str, maker: str = "convert", precision: str | None = None, **recipe) -> None:
    """Another file made of an entry listed before; it has that entry's facts."""
    base = next(listed for listed in LISTED if listed.name == source)
    kinds = recipe.pop("kinds", base.kinds)
    tolerance = recipe.pop("tolerance", base.tolerance)
    changed = {"name": name, "maker": maker, "file": "model.onnx", "source": source, "kinds": kinds}
    changed |= {"recipe": {"kinds": kinds, **recipe}, "precision": precision or base.precision, "tolerance": tolerance}
    if maker == "tf2onnx" and base.file == "model.pb":  # it keeps a frozen graph's tensor names
        changed |= {"ids": f"{base.ids}:0", "mask": f"{base.mask}:0", "types": f"{base.types}:0"}
    LISTED.append(replace(base, **changed))


def keras(
    name: str, activation: str = "gelu_erf", sizes: dict = SMALL, epsilon: float = 1e-3, dropout: float = 0
) -> None:
    """An own Keras 3 model; one with dropout has another softmax."""
    outputs = ("last_hidden_state", "first")
    recipe = {"sizes": sizes, "act": activation, "epsilon": epsilon, "outputs": outputs, "kinds": KINDS}
    recipe["dropout"] = dropout
    facts = (Facts(**sizes, activation=activation, epsilon=epsilon),)
    readers = ("positions", "first")
    LISTED.append(Listed(name, "keras", "saved_model", "own", facts, types=None, readers=readers, recipe=recipe))


def keras2onnx(name: str, activation: str = "gelu_erf", sizes: dict | None = None, **more) -> None:
    """A graph in keras2onnx's style, written by hand around a torch model's weights and answers."""
    sizes = sizes or SMALL | {"layers": 2}
    torch(name, sizes=sizes, activation=activation)
    last = LISTED.pop()
    LISTED.append(replace(last, maker="keras2onnx", recipe=last.recipe | more))


def stranger(
    name: str, example: tuple[int, int], axes: tuple[int, ...], sizes: dict = ODD, positions: int = POSITIONS, **more
) -> None:
    """A stock model as a stranger exports it: from an example of that batch and length, with those axes dynamic."""
    torch(name, sizes=sizes, static=example, **more)
    last = LISTED.pop()
    recipe = last.recipe | {"axes": axes, "positions": positions}
    if more.get("pool"):  # "embedding" is what dynamo calls a tensor of its own
        recipe |= {"outputs": ("pooled",), "flat": ["pooled"]}
    LISTED.append(replace(last, maker="strangers", recipe=recipe))


def stranger_own(name: str, model: str, facts: tuple[Facts, ...], stops: str = "") -> None:
    """A plain torch model of makers/strangers.py."""
    own(name, model, sizes=ODD, static=(2, 7), facts=facts, axes=(0, 1), positions=POSITIONS)
    last = LISTED.pop()
    LISTED.append(replace(last, maker="strangers", stops=stops, readers=()))
