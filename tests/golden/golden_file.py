"""The golden files: what they hold, and how kept sets and scores are packed.

A golden file is one gzip'd JSON object: where the facts come from (`source`, `version`, `commit`,
`command`, `trace`, `trace_sha256`) and `entries`, a list of

    form      the published class or function and its settings
    record    the kvsim record that computes the same
    budget    as typed on kvsim's command line
    owner     "kv_head" or "query_head": who has a kept set
    counts    "equal"; where published code rounds budgets in another way "nested" (one set holds
              the other) or "off by one" (shares of segments)
    layers    layer -> {"kept": [hex per head], "near": [hex per head], "score": base64 or absent}
    later_as_probe   absent, or how many of the trace's later tokens are a probe named draft
    differs   absent, or why kvsim keeps other entries

`near` are the entries whose scores are so close to a threshold that single precision or another
rule for ties may decide differently. Hex strings are bit sets: entry i is bit i mod 8, lowest
first, of byte i // 8.
"""
import base64
import gzip
import json

import numpy as np

NEAR = 1e-5   # relative distance from the threshold below which a kept set is a matter of rounding


def pack_set(indices, n):
    mask = np.zeros(n, dtype=np.uint8)
    mask[np.asarray(indices, dtype=int)] = 1
    return np.packbits(mask, bitorder="little").tobytes().hex()


def unpack_set(text):
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def pack_scores(scores):
    return base64.b64encode(np.asarray(scores, dtype="<f4").tobytes()).decode()


def unpack_scores(text, heads):
    return np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(heads, -1)


def near_threshold(scores, count):
    """Positions of a one-dimensional array that lie at the boundary of its `count` largest."""
    if not 0 < count < len(scores):
        return np.array([], dtype=int)
    scores = np.asarray(scores, dtype=np.float64)
    ordered = np.sort(scores)[::-1]
    last, first = ordered[count - 1], ordered[count]
    reach = NEAR * max(abs(last), abs(first))
    if last - first > reach:
        return np.array([], dtype=int)
    return np.flatnonzero((scores >= first - reach) & (scores <= last + reach))


def save(path, head, entries):
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    text = json.dumps(head, indent=1)[:-2] + ',\n "entries": [\n' + lines + "\n]}\n"
    json.loads(text)
    # no name and no time in the gzip header, so that the same facts give the same bytes
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(text.encode())


def load(path):
    with gzip.open(path, "rt") as file:
        return json.load(file)
