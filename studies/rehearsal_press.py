"""The policy `rehearsal:recent` as a press of kvpress, in PyTorch alone (tested with kvpress 0.5.5).

    press = RehearsalPress(compression_ratio=0.8)
    with press(model):
        model(prompt_ids, past_key_values=cache)

It asks which entries the prompt would look at if it were read once more behind itself
(studies/rehearsal.md). `kvsim.press("rehearsal:recent")` keeps the same entries, by the program.
"""

import math
from dataclasses import dataclass, field

import torch
from kvpress import BasePress
from kvpress.utils import get_prerope_query_states
from torch import nn
from transformers.models.llama.modeling_llama import rotate_half


@dataclass
class RehearsalPress(BasePress):
    """Keeps what queries of the prompt attend to when they are moved behind it.

    The prompt is cut into pieces. A query moves to the place that it would have if its piece
    followed the prompt, and the keys of its piece up to itself move along. An entry's score is the
    root mean square over queries of the attention that it then gets, the largest of the query heads
    that share it, at least a share of the KV head's mean, times the norm of its value behind the
    output projection. Heads of all layers compete for one budget, so that dropped entries are
    masked, when the last layer is done.

    Parameters
    ----------
    compression_ratio : float, default=0.0
        Share of all entries that is dropped.
    n_queries : int, default=256
        Queries that are moved, evenly spaced over the prompt.
    piece_size : int, default=128
        Tokens of a piece.
    floor : float, default=0.25
        Share of a KV head's mean score that every entry has at least.
    recent : float, default=0.05
        Newest entries that every head keeps, as a share of the mean budget of a head.
    first_layer_recent : float, default=0.3
        The same in the first layer.
    depth : float, default=1.5
        Scores of layer l of L count exp(-depth * l / L) times.
    """

    compression_ratio: float = 0.0
    n_queries: int = 256
    piece_size: int = 128
    floor: float = 0.25
    recent: float = 0.05
    first_layer_recent: float = 0.3
    depth: float = 1.5
    _scored: list = field(init=False, default_factory=list, repr=False)
    _last: int = field(init=False, default=0, repr=False)

    def post_init_from_model(self, model):
        config = model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        # kvpress leaves sliding layers of Gemma3 alone.
        gemma = type(model).__name__.startswith("Gemma3")
        self._last = max(i for i, kind in enumerate(kinds)
                         if not (gemma and kind == "sliding_attention"))
        self._scored = []

    def score(self, module: nn.Module, hidden_states: torch.Tensor, keys: torch.Tensor,
              values: torch.Tensor) -> torch.Tensor:
        """Scores [batch, KV heads, n]."""
        batch, kv_heads, n, head_dim = keys.shape
        count = min(self.n_queries, n)
        stood = torch.arange(1, count + 1, device=keys.device) * n // count - 1
        place = stood % self.piece_size
        queries = get_prerope_query_states(module, hidden_states[:, stood])
        scale = getattr(module, "scaling", None) or head_dim**-0.5

        def logits(positions):
            """[batch, KV heads, group, queries, n] of queries rotated to `positions`."""
            cos, sin = (part.unsqueeze(1) for part in module.rotary_emb(queries, positions[None]))
            rotated = (queries * cos + rotate_half(queries) * sin).view(
                batch, kv_heads, -1, count, head_dim)
            return (rotated @ keys.unsqueeze(2).transpose(-1, -2)).float() * scale

        moved, own = logits(n + place), logits(stood)
        entries = torch.arange(n, device=keys.device)
        first, last = (stood - place)[:, None], stood[:, None]
        own = own.masked_fill((entries < first) | (entries > last), -math.inf)
        everything = torch.logaddexp(moved.logsumexp(-1), own.logsumexp(-1))
        attention = (moved - everything[..., None]).exp()
        scores = attention.square().mean(dim=3).sqrt().amax(dim=2)
        scores = scores.maximum(self.floor * scores.mean(dim=-1, keepdim=True))
        return scores * self._value_norms(module, values)

    @staticmethod
    def _value_norms(module: nn.Module, values: torch.Tensor) -> torch.Tensor:
        """[batch, KV heads, n]: mean over the group of |v W_O| = sqrt(v (W_O W_O^T) v^T)."""
        kv_heads, width = values.shape[1], values.shape[3]
        weight = module.o_proj.weight.float().view(-1, kv_heads, module.num_key_value_groups, width)
        gram = torch.einsum("okgv,okgw->kgvw", weight, weight)
        squares = torch.einsum("bknv,kgvw,bknw->bkgn", values.float(), gram, values.float())
        return squares.clamp(min=0).sqrt().mean(dim=2)

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        """Scores one layer; behind the last one entries of all layers compete."""
        if self.compression_ratio > 0:
            if self._scored and self._scored[-1][0].layer_idx >= module.layer_idx:
                self._scored = []   # of a prompt that was not finished
            self._scored.append((module, self.score(module, hidden_states, keys, values)))
            if module.layer_idx == self._last:
                self._compete()
                self._scored = []
        return keys, values

    def _compete(self) -> None:
        device = self._scored[0][1].device
        n = self._scored[0][1].shape[-1]
        budget = int(n * (1 - self.compression_ratio) + 1e-6)
        ranked = []
        for module, scores in self._scored:
            depth = module.layer_idx / module.config.num_hidden_layers
            scores = scores.to(device) * math.exp(-self.depth * depth)
            share = max(self.recent, self.first_layer_recent if module.layer_idx == 0 else 0.0)
            scores[..., n - int(share * budget + 1e-6) :] = math.inf
            ranked.append(scores)
        ranked = torch.stack(ranked, dim=1)   # [batch, layers, KV heads, n]
        kept = torch.zeros_like(ranked, dtype=torch.bool).flatten(1)
        total = budget * ranked.shape[1] * ranked.shape[2]
        kept.scatter_(1, ranked.flatten(1).topk(total, dim=1).indices, True)
        dropped = ~kept.view_as(ranked)
        for at, (module, _) in enumerate(self._scored):
            module.masked_key_indices = tuple(
                part.to(module.o_proj.weight.device) for part in dropped[:, at].nonzero(as_tuple=True)
            )
