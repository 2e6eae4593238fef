"""Plain torch models for the zoo: other dialects of the same layer, several encoders in one model, what to refuse.

Used by torch.py for recipes with `own`; each forward gives the outputs, and the states between the layers besides.
"""

import math

import torch
import transformers
from torch import nn
from zoo.cases import POSITIONS, VOCABULARY


class Layer(nn.Module):
    """A post- or pre-LayerNorm layer; `style` decides how attention is written, `value` the size of a value head."""

    def __init__(self, sizes: dict, style: str, bias: bool, value: int | None, first: bool) -> None:
        super().__init__()
        width, self.heads = sizes["hidden"], sizes["heads"]
        self.size, self.style, self.first = width // self.heads, style, first
        self.value_size = value or self.size
        self.query, self.key = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.value = nn.Linear(width, self.heads * self.value_size, bias)
        self.out = nn.Linear(self.heads * self.value_size, width, bias)
        self.up, self.down = nn.Linear(width, sizes["inner"], bias), nn.Linear(sizes["inner"], width, bias)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x, mask, causal=None):
        batch, length = x.shape[0], x.shape[1]
        query = self.query(x).view(batch, length, self.heads, self.size)
        key = self.key(x).view(batch, length, self.heads, self.size)
        value = self.value(x).view(batch, length, self.heads, self.value_size)
        if self.style == "einsum":
            scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(self.size)
        else:  # the scale on the query, the keys transposed in one step
            query = query * self.size**-0.5
            scores = torch.matmul(query.permute(0, 2, 1, 3), key.permute(0, 2, 3, 1))
        scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(torch.float32).min)
        if causal is not None:
            scores = scores.masked_fill(causal[:length, :length] == 0, torch.finfo(torch.float32).min)
        shares = torch.softmax(scores, dim=-1)
        if self.style == "einsum":
            context = torch.einsum("bhqk,bkhd->bqhd", shares, value)
        else:
            context = torch.matmul(shares, value.permute(0, 2, 1, 3)).permute(0, 2, 1, 3)
        return self.out(context.reshape(batch, length, self.heads * self.value_size))

    def feed(self, x):
        return self.down(nn.functional.gelu(self.up(x)))

    def forward(self, x, mask, causal=None):
        if self.first:
            x = x + self.attend(self.norm_1(x), mask, causal)
            return x + self.feed(self.norm_2(x))
        x = self.norm_1(self.attend(x, mask, causal) + x)
        return self.norm_2(x + self.feed(x))


class Encoder(nn.Module):
    """Embeddings and layers written by hand."""

    def __init__(self, recipe: dict) -> None:
        super().__init__()
        sizes = recipe["sizes"]
        self.words = nn.Embedding(VOCABULARY, sizes["hidden"])
        self.positions = nn.Embedding(POSITIONS, sizes["hidden"])
        self.norm = nn.LayerNorm(sizes["hidden"])
        options = (recipe.get("style", ""), recipe.get("bias", True), recipe.get("value"), recipe.get("first", False))
        self.layers = nn.ModuleList(Layer(sizes, *options) for _ in range(sizes["layers"]))
        causal = torch.ones(POSITIONS, POSITIONS).tril()
        self.register_buffer("causal", causal if recipe.get("causal") else None)

    def forward(self, input_ids, attention_mask):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(places))
        states = [x]
        for layer in self.layers:
            x = layer(x, attention_mask, self.causal)
            states.append(x)
        return (x,), states


class Native(nn.Module):
    """torch's own nn.TransformerEncoder."""

    def __init__(self, recipe: dict) -> None:
        super().__init__()
        sizes = recipe["sizes"]
        self.words = nn.Embedding(VOCABULARY, sizes["hidden"])
        more = {
            "dropout": 0.0,
            "activation": recipe["act"],
            "batch_first": True,
            "norm_first": recipe.get("first", False),
        }
        layer = nn.TransformerEncoderLayer(sizes["hidden"], sizes["heads"], sizes["inner"], **more)
        self.layers = nn.TransformerEncoder(layer, sizes["layers"], enable_nested_tensor=False)

    def forward(self, input_ids, attention_mask):
        states, hidden = [self.words(input_ids)], attention_mask == 0
        made = self.layers(states[0], src_key_padding_mask=hidden)
        for layer in self.layers.layers:
            states.append(layer(states[-1], src_key_padding_mask=hidden))
        return (made,), states


class Pair(nn.Module):
    """Two stock encoders of different sizes in one model, or one of them used twice (siamese)."""

    def __init__(self, recipe: dict) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(transformers.BertModel(self.configure(s)) for s in recipe["pair"])

    @staticmethod
    def configure(sizes: dict) -> transformers.BertConfig:
        fields = {"hidden_size": sizes["hidden"], "num_hidden_layers": sizes["layers"], "vocab_size": VOCABULARY}
        fields |= {"num_attention_heads": sizes["heads"], "intermediate_size": sizes["inner"]}
        return transformers.BertConfig(**fields, max_position_embeddings=POSITIONS, attn_implementation="eager")

    def forward(self, input_ids, attention_mask, other_ids, other_mask):
        left = self.encoders[0](input_ids, attention_mask).last_hidden_state
        right = self.encoders[-1](other_ids, other_mask).last_hidden_state
        return (left, right), None


class Vision(nn.Module):
    """A stock ViT: pre-LayerNorm, no mask."""

    def __init__(self, recipe: dict) -> None:
        super().__init__()
        sizes = recipe["sizes"]
        fields = {
            "hidden_size": sizes["hidden"],
            "num_hidden_layers": sizes["layers"],
            "image_size": 16,
            "patch_size": 8,
        }
        fields |= {"num_attention_heads": sizes["heads"], "intermediate_size": sizes["inner"]}
        self.model = transformers.ViTModel(transformers.ViTConfig(**fields, attn_implementation="eager"))

    def forward(self, pixel_values):
        made = self.model(pixel_values, output_hidden_states=True)
        return (made.last_hidden_state,), list(made.hidden_states)


class Perceptron(nn.Module):
    """Words, two dense layers, LayerNorm: no encoder anywhere."""

    def __init__(self, recipe: dict) -> None:
        super().__init__()
        width, inner = recipe["sizes"]["hidden"], recipe["sizes"]["inner"]
        self.words = nn.Embedding(VOCABULARY, width)
        self.up, self.down, self.norm = nn.Linear(width, inner), nn.Linear(inner, width), nn.LayerNorm(width)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)
        x = self.norm(x + self.down(nn.functional.gelu(self.up(x))))
        return ((x * attention_mask.unsqueeze(-1)).sum(1),), None


OWN = {"encoder": Encoder, "native": Native, "pair": Pair, "vision": Vision, "perceptron": Perceptron}


class Outputs(nn.Module):
    """Only the outputs, for the exporter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model(*inputs)[0]
