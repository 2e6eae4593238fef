"""Chains: layers that read each other's output, divided where the mask changes. Each chain is an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusebert.match.findings import Mask, Match, Refused
from fusebert.match.mask import Masks


def chained(matches: Mapping[str, Match]) -> list[list[Match]]:
    """Layers one after the other, as long as each reads what the one before makes."""
    after = {match.bindings["x"]: match for match in matches.values()}
    chains = []
    for match in matches.values():
        if match.bindings["x"] in matches and after[match.bindings["x"]] is match:
            continue
        chain = [match]
        while (following := after.get(chain[-1].output)) is not None:
            chain.append(following)
        chains.append(chain)
    return chains


def same_mask(chain: list[Match], masks: Masks) -> list[list[Match]]:
    """The chain, divided where the mask changes."""
    parts: list[list[Match]] = []
    for match in chain:
        if parts and _mask(match, masks) == _mask(parts[-1][0], masks):
            parts[-1].append(match)
        else:
            parts.append([match])
    return parts


def _mask(match: Match, masks: Masks) -> Mask | str:
    """What a layer's mask hides, however it is computed; the reason where it is refused."""
    mask = masks.read(match.bindings["mask"], match.bindings["heads"])
    return mask.reason if isinstance(mask, Refused) else replace(mask, added="")
