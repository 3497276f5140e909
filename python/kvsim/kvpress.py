"""Presses of kvpress (NVIDIA) as policies: their `score` runs on the tensors of a trace.

A press expects an attention module and hidden states. It gets a module whose projections cut queries, keys and values
out of "hidden states" that hold exactly these, before their rotation where the trace knows it. What a trace does not
hold is NaN there, so that a press that looks at it is found out instead of being given something else."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import UsageError
from .kvtrace.writer import Rotation
from .policy import Policy
from .scoring import source_of
from .trace import Layer

if TYPE_CHECKING:
    import torch


def _tensor(array: np.ndarray) -> "torch.Tensor":
    """Read-only views of the file become tensors of their own, in float32."""
    import torch

    return torch.from_numpy(np.array(array, dtype=np.float32))


class _Stage:
    """A press's view of one layer's prompt: module, hidden states and position embeddings."""

    def __init__(self, layer: Layer):
        import torch

        self.layer = layer
        self.n = layer.keys.shape[1]
        self.heads, _, self.dim = layer.queries.shape
        self.kv_heads = layer.keys.shape[0]
        self.keys, self.values = _tensor(layer.keys)[None], _tensor(layer.values)[None]
        queries, keys = np.full((self.heads, self.n, self.dim), np.nan, np.float32), layer.keys
        queries[:, layer.query_positions] = layer.queries
        if layer.inv_freq is None:
            # Rotated queries and a rotation by nothing; keys before their rotation are unknown.
            ones = torch.ones(1, self.n, self.dim)
            self.embeddings = (ones, torch.zeros_like(ones))
            keys = np.full(keys.shape, np.nan)
        else:
            self.embeddings = self._angles(torch.arange(self.n)[None])
            rotation = Rotation(tuple(layer.inv_freq))
            queries, keys = (rotation.turn(one, -np.arange(self.n)[:, None]) / layer.attention_factor
                             for one in (queries, keys))
        self.hidden = torch.cat([one.transpose(0, 1).reshape(self.n, -1) for one in (
            _tensor(queries), _tensor(keys), self.values[0])], 1)[None]

    def _angles(self, positions: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        frequencies = torch.from_numpy(np.array(self.layer.inv_freq, dtype=np.float64))
        angles = torch.cat([positions[..., None].double() * frequencies] * 2, dim=-1)
        factor = self.layer.attention_factor
        return (factor * angles.cos()).float(), (factor * angles.sin()).float()

    def _rotary(self, _: Any, positions: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        if self.layer.inv_freq is None:
            raise UsageError("the press needs the model's rotation, which the trace does not hold (rope/inv_freq)")
        return self._angles(positions)

    def module(self, attentions: bool) -> SimpleNamespace:
        """The part that presses read of an attention module of transformers."""
        layer, width = self.layer, self.layer.values.shape[2]
        ends = np.cumsum([0, self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * width])
        cut = [lambda hidden, a=a, b=b: hidden[..., a:b] for a, b in zip(ends, ends[1:])]
        weight = _tensor(layer.wo).reshape(self.heads * width, -1).T
        config = SimpleNamespace(num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
                                 head_dim=self.dim, hidden_size=weight.shape[0],
                                 num_hidden_layers=layer.num_layers,
                                 _attn_implementation="eager" if attentions else "sdpa")
        return SimpleNamespace(
            config=config, head_dim=self.dim, num_key_value_groups=layer.group_size,
            num_heads=self.heads, num_key_value_heads=self.kv_heads, layer_idx=layer.index,
            q_proj=cut[0], k_proj=cut[1], v_proj=cut[2], o_proj=SimpleNamespace(weight=weight),
            rotary_emb=self._rotary, training=False)

    def attention(self) -> "torch.Tensor":
        """[1, Hq, n, n], NaN in rows whose query the trace lacks."""
        import torch

        rows = torch.full((1, self.heads, self.n, self.n), torch.nan)
        rows[0, :, torch.from_numpy(self.layer.query_positions)] = _tensor(self.layer.attention())
        return rows


class Press:
    """A press's `score` as a function of a layer: scores [Hkv, n]."""

    def __init__(self, press: Any):
        self.press = press
        self.__name__ = type(press).__name__
        self.kvsim_source = f"# {press!r}\n{source_of(type(press))}"

    def __call__(self, layer: Layer) -> np.ndarray:
        """The press's scores on the prompt of one layer."""
        import torch

        stage = _Stage(layer)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            # Presses that draw do so alike in every run.
            torch.manual_seed(layer.index)
            try:
                scores = self._score(stage, False)
            except (AssertionError, TypeError, AttributeError) as error:
                # The press wants the attention weights themselves.
                if isinstance(error, AssertionError) and "eager" not in str(error):
                    raise
                scores = self._score(stage, True)
        scores = scores[0].float().numpy()
        if np.isnan(scores).any():
            raise UsageError(
                f"{self.__name__}, layer {layer.index}: the press looks at what the trace does not "
                f"hold: queries of the prompt (it has {len(layer.query_positions)} of "
                f"{layer.keys.shape[1]})"
                + ("" if layer.inv_freq is not None else ", or keys before their rotation"))
        return scores

    def _score(self, stage: _Stage, attentions: bool) -> "torch.Tensor":
        return self.press.score(stage.module(attentions), stage.hidden, stage.keys.clone(),
                                stage.values.clone(), stage.attention() if attentions else None,
                                {"position_embeddings": stage.embeddings})


def from_kvpress(press: Any, *, name: str | None = None, **keys: object) -> Policy:
    """A press of kvpress as a policy: its scores, every other stage by keys of the record.

    >>> from kvpress import ExpectedAttentionPress
    >>> replay(trace, ["snapkv", from_kvpress(ExpectedAttentionPress())], 0.3)

    Counts are rounded as kvpress does. Of wrappers give the inner press and the stage that the
    wrapper adds: ``from_kvpress(SnapKVPress(), allocate="ada")``. A press whose scores depend on
    its ``compression_ratio`` (StreamingLLMPress, CriticalKVPress) is good for that budget alone.

    Args:
        press: an object with kvpress's method ``score``.
        name: in results and figures; the class's without.
        keys: of the record, as for :class:`kvsim.Policy`.

    Raises:
        UsageError: when it has no scores of its own, or looks at something that no trace holds."""
    if not callable(getattr(press, "score", None)):
        inner = getattr(press, "press", None)
        hint = f"; give the press inside, {type(inner).__name__}" if inner is not None else ""
        raise UsageError(f"{type(press).__name__}: has no method score, so there are no scores to replay{hint}")
    return Policy(Press(press), name=name, **{"rounding": "kvpress", **keys})
