"""FusedModel: a whole model of transformers whose encoder runs as one operator.

For families whose layers stand in the model itself, or whose masks and positions are made there: the model's own
modules embed and pool, and everything between is one call."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from fusebert.engine.quantize import random_ids
from fusebert.torch.encoder import Fused, in_a_thread
from fusebert.torch.operator import is_tracing
from fusebert.torch.wiring import ModelWiring

_USED = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "output_hidden_states",
         "output_attentions", "return_dict")  # fmt: skip
_WITHOUT_EFFECT = ("cache_position", "use_cache", "num_items_in_batch")
# ModernBERT's of transformers 4, whose heads take padding away themselves where its attention is flash_attention_2.
_UNPADDED = ("indices", "cu_seqlens", "max_seqlen", "batch_size", "seq_len")


class FusedModel(Fused):
    """Stands before a model's own class, whose name it has: it is saved under that."""

    arguments: tuple[str, ...]  # of forward, in order

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the original, which also runs in training and where something else than encoding is asked for."""
        state = vars(self).get("fusebert")
        if self.training or state is None:
            return type(self).original.forward(self, *args, **kwargs)
        named = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        states = bool(self._wants("output_hidden_states", named))
        reason = self._reason_against(named, states)
        if reason:
            self._warn(reason)
            return type(self).original.forward(self, *args, **kwargs)
        rows = self._embed(named)
        if named.get("cu_seqlens") is not None:
            last = self._run_unpadded(rows, named["cu_seqlens"])
            return self._answer(last, None, named.get("return_dict"))
        outputs, run = self._prepare(rows, self._mask(named.get("attention_mask")), states)
        run()
        return self._answer(outputs[-1], (rows, *outputs) if states else None, named.get("return_dict"))

    @classmethod
    def wire(cls, encoder: nn.Module) -> ModelWiring:
        """Where the weights of a model are now, fused or not."""
        return ModelWiring(encoder)

    def sample_rows(self) -> torch.Tensor | None:
        """Rows of random ids, on which int8 smoothing observes the inputs."""
        return in_a_thread(partial(_embedded_sample, self))

    @property
    def _wiring(self) -> ModelWiring:
        wiring = self.fusebert.wiring
        assert isinstance(wiring, ModelWiring)  # made when the model was
        return wiring

    def _run_unpadded(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Rows without padding, `[tokens, hidden]`, of sequences that end at these, each with positions from 0."""
        lengths = ends.diff().long()
        shown = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        padded = rows.new_zeros((*shown.shape, rows.shape[-1]))
        padded[shown] = rows
        outputs, run = self._prepare(padded, shown, False, "skip")
        run()
        return outputs[-1][shown]

    def _reason_against(self, named: dict[str, Any], states: bool) -> str:
        if self._wants("output_attentions", named):
            return "output_attentions is asked for"
        unpadded = "cu_seqlens" in self.arguments and named.get("cu_seqlens") is not None
        known = (*_USED, *_WITHOUT_EFFECT, *(_UNPADDED if unpadded else ()))
        for name, value in named.items():
            if name not in known and value is not None and value is not False:
                return f"{name} is given"
        given = [named.get(name) for name in ("input_ids", "inputs_embeds")]
        if sum(value is not None for value in given) != 1:
            return "not one of input_ids and inputs_embeds is given"
        first = given[0] if given[0] is not None else given[1]
        mask = named.get("attention_mask")
        dimensions = (2 if first is given[0] else 3) - unpadded
        if not isinstance(first, torch.Tensor) or not first.is_cpu or first.dim() != dimensions:
            return f"its input is not {'rows without padding' if unpadded else 'a padded batch'} on the CPU"
        if unpadded:
            return "hidden states of rows without padding are asked for" if states else self._reason_inside()
        if mask is not None and (not isinstance(mask, torch.Tensor) or not mask.is_cpu or mask.dim() != 2):
            return "the attention mask is not a CPU tensor of two dimensions"
        if getattr(self, "z_steps", 0) > 1:
            return "its last layer runs more than once"
        return self._reason_inside() or self._reason_in_positions(named.get("position_ids"), states)

    def _reason_in_positions(self, position_ids: Any, states: bool) -> str:
        if states and self._wiring.returns_tuples and hasattr(self, "final_norm"):
            return "its hidden states are asked for, and the last is from before its last norm"
        if position_ids is None or not self._wiring.shape.rotary:
            return ""
        plain = not is_compiling() and not is_tracing() and isinstance(position_ids, torch.Tensor)
        if plain and bool((position_ids == torch.arange(position_ids.shape[-1])).all()):
            return ""
        return "position_ids are given that do not count from 0"

    def _embed(self, named: dict[str, Any]) -> torch.Tensor:
        """The rows that enter the first layer."""
        embeddings: Any = self._modules.get("embeddings")
        if embeddings is None:
            embed: Any = self._modules["embed_tokens"]
            tokens: torch.Tensor | None = named.get("inputs_embeds")
            if tokens is None:
                embedded: torch.Tensor = embed(named["input_ids"])
                return embedded
            return tokens
        wanted = self._wiring.embeds
        given = {name: named[name] for name in named if name in wanted and named[name] is not None}
        if "mask" in wanted:
            given["mask"] = named.get("attention_mask")
        rows = embeddings(**given)
        encoder: Any = self._modules.get("encoder")
        widen = None if encoder is None else encoder._modules.get("embedding_hidden_mapping_in")
        return rows if widen is None else widen(rows)  # type: ignore[no-any-return]

    def _mask(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """DeBERTa's hidden rows see nothing, that is everything alike; of other families they see what all rows see."""
        if mask is None or not self._wiring.shape.disentangled or self.fusebert.hidden_rows == "skip":
            return mask
        shown = mask != 0
        plain = not is_compiling() and not is_tracing()
        if self.fusebert.hidden_rows == "first" and (not plain or bool(shown[:, 0].all())):
            return mask
        return shown[:, None, None, :] & shown[:, None, :, None]

    def _answer(self, last: torch.Tensor, states: tuple[torch.Tensor, ...] | None, as_dict: Any) -> Any:
        pools = "pooler_output" in self.output_type.__dataclass_fields__
        pooled = {"pooler_output": self._pooled(last)} if pools else {}
        output: Any = self.output_type(last_hidden_state=last, hidden_states=states, **pooled)
        if as_dict is None:
            as_dict = getattr(self.config, "return_dict", True)
        if as_dict:
            return output
        if not (pools and self._wiring.returns_tuples):
            return output.to_tuple()
        return (last, pooled["pooler_output"], *([states] if states else []))

    def _pooled(self, rows: torch.Tensor) -> torch.Tensor | None:
        pooler: Any = self._modules.get("pooler")
        if pooler is None:
            return None
        activation: Any = self._modules.get("pooler_activation")
        pooled: torch.Tensor = pooler(rows) if activation is None else activation(pooler(rows[:, 0]))
        return pooled


def _embedded_sample(model: Any) -> torch.Tensor | None:
    words = model.get_input_embeddings()
    if words.weight.device.type != "cpu":
        return None
    with torch.no_grad():
        ids = torch.from_numpy(
            random_ids(words.num_embeddings, max(1, min(64, model.config.max_position_embeddings - 2)))
        )
        return model._embed({"input_ids": ids}).float().contiguous()  # type: ignore[no-any-return]
