"""PyTorch's gather form over a whole trace: attention of the later queries with eight kept sets at
ten budgets, for every layer and KV head. Only that is timed: tensors are in memory, kept sets are
given, nothing is scored, projected or written.

    torch_trace.py TRACE THREADS                  float32 on the CPU, softmax as PyTorch writes it
    torch_trace.py TRACE THREADS DEVICE LAYERS    as stored, scaled_dot_product_attention, and the
                                                  first layer again and again

Reads lines from standard input, answers each with the seconds of one run. `run`: outputs at every
later step. The name of a file with kvsim's results: the share of the softmax at every step, outputs
only at as many steps as the file holds output errors of, evenly spaced (not on a DEVICE)."""
import json
import sys
import time

import h5py
import numpy
import torch

path, threads = sys.argv[1], int(sys.argv[2])
device, repeats = (sys.argv[3], int(sys.argv[4])) if len(sys.argv) > 3 else (None, 1)
torch.set_num_threads(threads)
torch.set_grad_enabled(False)
POLICIES = 8
BUDGETS = [.01, .02, .03, .05, .08, .12, .18, .25, .35, .5]


def tensor(dataset):
    """float32, from bfloat16 stored as uint16."""
    stored = torch.from_numpy(dataset[:].view(numpy.int16)).view(torch.bfloat16)
    return stored.to(device) if device else stored.float()


with h5py.File(path) as file:
    n, scale = int(file.attrs["prompt_len"]), float(file.attrs["attention_scale"])
    position = file["query_position"][:]
    first = int(numpy.searchsorted(position, n))
    layers = [tuple(tensor(layer[name]) for name in "qkv")
              for layer in ([file["layers/0"]] if device else file["layers"].values())]
steps = len(position) - first
generator = torch.Generator().manual_seed(1)
orders = [torch.randperm(n, generator=generator) for _ in range(POLICIES)]
kept = [max(1, int(n * share + 0.5)) for share in BUDGETS]


def group(Q, K, V, wanted):
    """Full attention, then every kept set with the later positions that all of them keep."""
    N = K.shape[0]
    rows = (torch.arange(Q.shape[0] // steps)[:, None] * steps + wanted).flatten()
    every = len(wanted) == steps
    later = torch.arange(n, N)
    queries = torch.from_numpy(position[first:]).repeat(Q.shape[0] // steps)
    hidden = later[None, :] > queries[:, None]

    def attend(keys, values):
        s = Q @ keys.T
        s[:, -len(later):].masked_fill_(hidden, float("-inf"))
        return torch.softmax(s if every else s[rows], -1) @ values, torch.logsumexp(s, -1)

    full, total = attend(K, V)
    for order in orders:
        for count in kept:
            index = torch.cat([order[:count], later])
            z, mass = attend(K[index], V[index])
            (z - full).norm(dim=-1), (mass - total).exp()


def attend_kept(q, k, v):
    """The same for all KV heads of a layer at once, by the fused attention of PyTorch."""
    heads, (kv_heads, N, d) = q.shape[0], k.shape
    Q = q[:, first:].reshape(1, kv_heads, -1, d)
    seen = torch.from_numpy(position[first:]).to(device).repeat(heads // kv_heads)
    later = torch.arange(n, N, device=device)
    mask_later = later[None, :] <= seen[:, None]

    def attend(keys, values):
        mask = torch.ones(Q.shape[2], keys.shape[1], dtype=torch.bool, device=device)
        mask[:, -len(later):] = mask_later
        return torch.nn.functional.scaled_dot_product_attention(
            Q, keys[None], values[None], attn_mask=mask, scale=scale)

    full = attend(k, v)
    for order in orders:
        for count in kept:
            index = torch.cat([order[:count], later])
            (attend(k[:, index], v[:, index]) - full).float().norm(dim=-1)


def run_on_device():
    for _ in range(repeats):
        attend_kept(*layers[0])
    if device != "cpu":
        torch.cuda.synchronize()


def run(wanted):
    if device:
        return run_on_device()
    for q, k, v in layers:
        heads = q.shape[0] // k.shape[0]
        for kv in range(k.shape[0]):
            Q = q[kv * heads:(kv + 1) * heads, first:].reshape(-1, q.shape[2]) * scale
            group(Q, k[kv], v[kv], wanted)


def steps_of(results):
    """As many evenly spaced steps as kvsim gave outputs of."""
    with h5py.File(results) as file:
        config = file.attrs["config"]
    config = json.loads(config if isinstance(config, str) else config.decode())
    return torch.linspace(0, steps - 1, config["wo_steps"] or steps).round().long()


if device:
    orders = [order.to(device) for order in orders]
run(torch.arange(steps))
print("device PyTorch", torch.__version__)
print("ready", flush=True)
for line in sys.stdin:
    asked = line.strip()
    wanted = torch.arange(steps) if asked == "run" else steps_of(asked)
    begin = time.perf_counter()
    run(wanted)
    print(time.perf_counter() - begin, flush=True)
