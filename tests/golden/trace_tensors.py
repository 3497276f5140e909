"""Feeds the tensors of a trace to published code that expects a transformers attention module."""
import argparse
import contextlib
import hashlib
import importlib.machinery
import subprocess
import sys
import types
from decimal import Decimal

import h5py
import numpy as np
import torch

import golden_file

BUDGETS = ["0.1", "0.3", "0.5", "0.75"]
LAYERS = [0, 15, 29]


class Rotary:
    """The rotary embedding of the trace's model, as modules of transformers hand it out."""

    def __init__(self, file):
        self.inv_freq = torch.from_numpy(file["rope/inv_freq"][...].astype(np.float64))

    def __call__(self, like, position_ids):
        angles = position_ids[..., None].double() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


class Layer:
    """One layer of the trace, cut at the end of the prompt: torch float32, batch axis in front."""

    def __init__(self, file, index, place):
        group = file[f"layers/{index}"]
        n = int(file.attrs["prompt_len"])
        if file["query_position"][:n].tolist() != list(range(n)):
            raise SystemExit("the trace must hold the queries of the whole prompt")
        read = lambda name: group[name][...].astype(np.float32)
        self.index, self.n = index, n
        self.q, self.k, self.v = (torch.from_numpy(read(x)[None, :, :n].copy()) for x in "qkv")
        self.wo = torch.from_numpy(read("wo"))
        self.heads, self.kv_heads, self.head_dim = self.q.shape[1], self.k.shape[1], self.k.shape[3]
        self.groups = self.heads // self.kv_heads
        self.attention = self._causal_attention(float(file.attrs["attention_scale"]))
        self.module = self._module(place, int(file.attrs["num_layers"]))
        self.rotary = Rotary(file) if "rope/inv_freq" in file else None
        # post-RoPE queries pass through an identity projection and a rotation by zero degrees
        self.hidden = self.q[0].transpose(0, 1).reshape(1, n, -1)
        self.no_rotation = (torch.ones(1, n, self.head_dim), torch.zeros(1, n, self.head_dim))

    def unrotated(self, tensor):
        """Queries or keys [1, heads, n, size] as they were before their rotation."""
        cos, sin = self.rotary(tensor, torch.arange(self.n)[None])
        half = tensor.shape[-1] // 2
        swapped = torch.cat((tensor[..., half:], -tensor[..., :half]), dim=-1)
        return tensor * cos + swapped * sin

    def _causal_attention(self, scale):
        """Softmax over visible keys in double precision, handed on in single precision."""
        k = self.k[0].double().repeat_interleave(self.groups, 0)
        logits = scale * self.q[0].double() @ k.transpose(1, 2)
        hidden = torch.ones(self.n, self.n, dtype=torch.bool).triu(1)
        return logits.masked_fill(hidden, -torch.inf).softmax(-1).float()[None]

    def _module(self, place, model_layers):
        """What presses read from an attention module. `place` is the layer's index to the press."""
        config = types.SimpleNamespace(
            num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim, hidden_size=self.wo.shape[2],
            num_hidden_layers=model_layers, _attn_implementation="sdpa")
        weight = self.wo.reshape(self.heads * self.head_dim, -1).T
        return types.SimpleNamespace(
            config=config, head_dim=self.head_dim, num_key_value_groups=self.groups,
            layer_idx=place, q_proj=lambda hidden: hidden, training=False,
            o_proj=types.SimpleNamespace(weight=weight))

    def indices(self, heads):
        """A stand-in for keys or values that code only gathers: every row is its own position."""
        row = torch.arange(self.n).view(1, 1, self.n, 1)
        return row.expand(1, heads, self.n, self.head_dim).clone()

    def repeated(self, tensor):
        return tensor.repeat_interleave(self.groups, 1)


def read_layers(path, layers, places=None):
    with h5py.File(path) as file:
        return [Layer(file, index, index if places is None else places[i])
                for i, index in enumerate(layers)]


class Steps:
    """One layer of the trace to its end, for code that evicts while it decodes: the attention of
    each later query over what a cache still holds, in double precision, handed on in single."""

    def __init__(self, file, index):
        group = file[f"layers/{index}"]
        self.index, self.n = index, int(file.attrs["prompt_len"])
        self.total = int(file.attrs["total_len"])
        if file["query_position"][...].tolist() != list(range(self.total)):
            raise SystemExit("the trace must hold all queries")
        self.q, self.k = (torch.from_numpy(group[x][...].astype(np.float64)) for x in "qk")
        self.scale = float(file.attrs["attention_scale"])
        self.heads, self.kv_heads = self.q.shape[0], self.k.shape[0]
        self.groups = self.heads // self.kv_heads

    def attention(self, queries, held):
        """[1, heads, queries, held]: of the queries at these positions; `held` [heads][entries] are
        positions, ascending, no later than the first query but for a prompt over itself."""
        held = torch.as_tensor(held)
        keys = self.k.repeat_interleave(self.groups, 0)
        keys = torch.take_along_dim(keys, held[:, :, None], 1)
        logits = self.scale * self.q[:, queries] @ keys.transpose(1, 2)
        hidden = held[:, None, :] > torch.as_tensor(queries)[None, :, None]
        return logits.masked_fill(hidden, -torch.inf).softmax(-1).float()[None]


def read_steps(path, layers):
    with h5py.File(path) as file:
        return [Steps(file, index) for index in layers]


def numbered(positions, heads):
    """A stand-in for cached keys or values, [1, heads, entries, 1]: rows are their positions."""
    row = torch.as_tensor(list(positions), dtype=torch.float32).view(1, 1, -1, 1)
    return row.expand(1, heads, -1, 1).clone()


def of_prompt(held, n):
    """Lists of the prompt entries among the positions [heads][entries]."""
    return [[int(i) for i in head if i < n] for head in held]


def dropped_share(budget):
    """The compression ratio that belongs to a budget, from the exact decimal."""
    return float(1 - Decimal(budget))


def count(budget, n):
    return int(Decimal(budget) * n)


def layer_entry(n, kept, near=None, scores=None):
    """One layer's facts; `kept` and `near` are lists of index lists, one per head."""
    near = near or [[] for _ in kept]
    facts = {"kept": [golden_file.pack_set(x, n) for x in kept],
             "near": [golden_file.pack_set(x, n) for x in near]}
    if scores is not None:
        facts["score"] = golden_file.pack_scores(scores)
    return facts


def import_without_init(root, package):
    """Makes modules of `package` importable from `root` while its __init__ does not run.

    Those __init__ files patch attention functions or want packages that scoring does not need.
    """
    for name, folder in ((package, f"{root}/{package}"),
                         (f"{package}.presses", f"{root}/{package}/presses")):
        module = types.ModuleType(name)
        module.__path__ = [folder]
        sys.modules[name] = module


def stand_in(name, **attributes):
    """A module for an import that scoring does not need (flash attention and the like)."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(attributes)
    sys.modules[name] = module


@contextlib.contextmanager
def recorded_topk():
    """Lists (scores, k, indices) of every topk inside; their results are not changed."""
    calls, original = [], torch.Tensor.topk

    def topk(self, k, *args, **kwargs):
        result = original(self, k, *args, **kwargs)
        calls.append((self.detach().clone(), int(k), result.indices.clone()))
        return result

    torch.Tensor.topk = topk
    try:
        yield calls
    finally:
        torch.Tensor.topk = original


def arguments(description, repository=None):
    parser = argparse.ArgumentParser(description=description)
    if repository:
        parser.add_argument("repository", help=f"a git clone of {repository}")
    parser.add_argument("trace", help="a trace file with all prompt queries, e.g. data/sample.h5")
    parser.add_argument("-o", "--out", required=True, help="the golden file to write (.json.gz)")
    parser.add_argument("--layers", type=lambda text: [int(x) for x in text.split(",")],
                        default=LAYERS)
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    return parser.parse_args()


def write(args, source, entries, version=None):
    with open(args.trace, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    words = [x if x != getattr(args, "repository", None) else "CLONE" for x in sys.argv[1:]]
    head = {"source": source, "version": version,
            "command": "python3 tests/golden/" + " ".join([sys.argv[0].split("/")[-1], *words]),
            "torch": torch.__version__, "trace": args.trace, "trace_sha256": digest}
    if hasattr(args, "repository"):
        head["commit"] = subprocess.run(["git", "-C", args.repository, "rev-parse", "HEAD"],
                                        check=True, text=True, capture_output=True).stdout.strip()
    golden_file.save(args.out, head, entries)
    print(f"{args.out}: {len(entries)} entries")
