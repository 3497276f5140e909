"""Compressed caches by the book: one later token at a time, one head at a time, float64 slots.

The second implementation that the closed loop is judged by. It shares nothing with the program:
each rule is as the specification has it, without batching, log-sum-exps or differences of positions.
"""

from dataclasses import dataclass, field

import numpy as np

@dataclass
class Slot:
    """One stored key and value; `bias` is added to the logits, one per query head of the owner."""

    position: int
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray
    members: list = field(default_factory=list)   # (key, value) of everything merged into it
    score: float = 0.0


@dataclass
class Owner:
    """A KV head, or a query head, with its slots in ascending position."""

    heads: list[int]
    kv: int
    slots: list[Slot] = field(default_factory=list)


class Layer:
    """All that one layer has seen: q [Hq][t, d], k and v [Hkv][t, d], and how it attends."""

    def __init__(self, module, query, key, value, kwargs):
        self.q, self.k, self.v = (t[0].double().numpy() for t in (query, key, value))
        self.heads, self.group = len(self.q), len(self.q) // len(self.k)
        self.scale = float(kwargs["scaling"])
        self.softcap = kwargs.get("softcap")
        sinks = kwargs.get("s_aux")
        self.sinks = None if sinks is None else sinks.double().numpy()
        weight = module.o_proj.weight.detach().double().numpy()
        self.wo = weight.T.reshape(self.heads, -1, len(weight))

    def append(self, query, key, value) -> None:
        self.q, self.k, self.v = (np.concatenate([old, new[0].double().numpy()], axis=1)
                                  for old, new in ((self.q, query), (self.k, key), (self.v, value)))

    def softmax(self, head: int, logits: np.ndarray) -> np.ndarray:
        sink = -np.inf if self.sinks is None else self.sinks[head]
        largest = max(logits.max(), sink)
        weights = np.exp(logits - largest)
        return weights / (weights.sum() + np.exp(sink - largest))

    def logits(self, head: int, query: np.ndarray, keys: np.ndarray) -> np.ndarray:
        logits = self.scale * keys @ query
        return self.softcap * np.tanh(logits / self.softcap) if self.softcap else logits

    def full_row(self, head: int, position: int) -> np.ndarray:
        """Attention of one query on everything up to itself, nothing compressed."""
        keys = self.k[head // self.group][: position + 1]
        return self.softmax(head, self.logits(head, self.q[head][position], keys))

    def owners(self, per_query_head: bool) -> list[Owner]:
        if per_query_head:
            return [Owner([h], h // self.group) for h in range(self.heads)]
        return [Owner(list(range(kv * self.group, (kv + 1) * self.group)), kv)
                for kv in range(len(self.k))]

    def slots(self, owner: Owner, positions) -> list[Slot]:
        return [Slot(int(i), self.k[owner.kv][i].copy(), self.v[owner.kv][i].copy(),
                     np.zeros(len(owner.heads))) for i in positions]


class Cache:
    """Keeps the `budget` entries of smallest key norm. Subclasses change what they like."""

    per_query_head = False
    decodes = False
    period = 0
    chunk, ends = 0, ()    # the prompt comes in chunks of so many tokens, which end here
    alone = 0.0            # share of each chunk that stays, which is compressed by itself
    merge = staticmethod(lambda layer, owners, evicted: None)
    quantize = staticmethod(lambda slots: None)
    inv_freq = None        # positions=cache

    def __init__(self, budget: int):
        self.budget = budget

    def scores(self, layer: Layer, owner: Owner, count: int) -> np.ndarray:
        return -np.linalg.norm(layer.k[owner.kv][:count], axis=1)

    def safe(self, positions: list[int]) -> set[int]:
        return set()

    def compress(self, layer: Layer, count: int) -> list[Owner]:
        """The owners' slots of entries 0..count-1."""
        owners, evicted = layer.owners(self.per_query_head), []
        for owner in owners:
            score = self.scores(layer, owner, count)
            safe = self.safe(list(range(count)))
            order = sorted(range(count), key=lambda i: (i in safe, score[i], i), reverse=True)
            places = self.places(count)
            kept = sorted(order[:places])
            owner.slots = layer.slots(owner, kept)
            for slot in owner.slots:
                slot.score = score[slot.position]
            evicted.append(layer.slots(owner, sorted(order[places:])))
        self.rows = [[layer.full_row(h, count - 1) for h in o.heads] for o in owners]
        self.merge(layer, owners, evicted)
        for owner in owners:
            self.quantize(owner.slots)
        return owners

    def places(self, count: int) -> int:
        return max(1, int(count * self.alone)) if self.alone else self.budget

    def compress_chunk(self, layer: Layer, owners: list[Owner], attention: list, end: int) -> None:
        """What came with the newest chunk, as if it were the whole prompt."""
        begin = (end - 1) // self.chunk * self.chunk
        for owner, rows in zip(owners, attention):
            new = [s.position >= begin for s in owner.slots]
            chunk = Owner(owner.heads, owner.kv)
            chunk.slots = [s for s, own in zip(owner.slots, new) if own]
            owner.chunk, owner.rows = chunk, [row[new] / row[new].sum() for row in rows]
        self.statistics(layer, [o.chunk for o in owners], [o.rows for o in owners])
        safe = self.safe(list(range(begin, end)))
        for owner in owners:
            owner.chunk.slots.sort(key=lambda s: (s.position in safe, s.score, s.position))
            left = owner.chunk.slots[: -self.places(end - begin)]
            owner.slots = [s for s in owner.slots if all(s is not one for one in left)]

    def statistics(self, layer: Layer, owners: list[Owner], attention: list) -> None:
        """`attention` [owner][head of it][slot], of the newest query."""
        for owner in owners:
            for slot in owner.slots:
                slot.score = -np.linalg.norm(slot.key)

    def evict(self, layer: Layer, owners: list[Owner], attention: list) -> None:
        leaving = []
        for owner in owners:
            leaving.append([])
            if len(owner.slots) > self.budget:
                safe = self.safe([slot.position for slot in owner.slots])
                victim = min((s for s in owner.slots if s.position not in safe),
                             key=lambda s: (s.score, s.position))
                owner.slots.remove(victim)
                leaving[-1] = [victim]
        self.merge(layer, owners, leaving)

    def step(self, layer: Layer, owners: list[Owner], position: int) -> np.ndarray:
        """Outputs [Hq, dv] of the query at `position`, whose entry is appended."""
        output = np.zeros((layer.heads, layer.v.shape[2]))
        attention = []
        for owner in owners:
            owner.slots += layer.slots(owner, [position])
            values = np.array([slot.value for slot in owner.slots])
            attention.append([])
            for x, head in enumerate(owner.heads):
                logits = self.placed_logits(layer, owner, head, position)
                logits = logits + [slot.bias[x] for slot in owner.slots]
                attention[-1].append(layer.softmax(head, logits))
                output[head] = attention[-1][-1] @ values
        if self.decodes or position + 1 in self.ends:
            self.rows = attention
            if self.alone:
                self.compress_chunk(layer, owners, attention, position + 1)
                return output
            self.statistics(layer, owners, attention)
            while any(len(o.slots) > self.budget for o in owners):
                self.evict(layer, owners, attention)
        return output

    def placed_logits(self, layer, owner, head, position) -> np.ndarray:
        keys, query = np.array([slot.key for slot in owner.slots]), layer.q[head][position]
        if self.inv_freq is not None:
            keys = np.array([rotated(key, r - slot.position, self.inv_freq)
                             for r, (slot, key) in enumerate(zip(owner.slots, keys))])
            query = rotated(query, len(owner.slots) - 1 - position, self.inv_freq)
        return layer.logits(head, query, keys)


def rotated(vector, by, inv_freq):
    half = len(inv_freq)
    c, s = np.cos(by * inv_freq), np.sin(by * inv_freq)
    a, b = vector[:half], vector[half:]
    return np.concatenate([a * c - b * s, a * s + b * c])


class Streaming(Cache):
    """4 sinks and the newest; while decoding the oldest other one leaves."""

    def scores(self, layer, owner, count):
        return np.array([count if i < 4 else i for i in range(count)], dtype=float)

    def safe(self, positions):
        return {p for p in positions if p < 4}

    def statistics(self, layer, owners, attention):
        for owner in owners:
            for slot in owner.slots:
                slot.score = slot.position


class Tova(Cache):
    """What the newest query attends to, mean over all heads."""

    def scores(self, layer, owner, count):
        return np.mean([layer.full_row(h, count - 1) for h in range(layer.heads)], axis=0)

    def statistics(self, layer, owners, attention):
        mean = np.mean([row for rows in attention for row in rows], axis=0)
        for owner in owners:
            for slot, score in zip(owner.slots, mean):
                slot.score = score


class SafeTova(Tova):
    def safe(self, positions):
        return {positions[-1]}


class HeavyHitters(Cache):
    """Summed attention per query head; the newest half is safe."""

    per_query_head = True

    def scores(self, layer, owner, count):
        total = np.zeros(count)
        for position in range(count):
            row = layer.full_row(owner.heads[0], position)
            total[: len(row)] += row
        return total

    def safe(self, positions):
        return set(positions[len(positions) - self.budget // 2 :])

    def statistics(self, layer, owners, attention):
        for owner, rows in zip(owners, attention):
            for slot, score in zip(owner.slots, rows[0]):
                slot.score += score


class Hindsight(Cache):
    """At every step the entries of the prompt with the largest attention times |v W|_1."""

    def compress(self, layer, count):
        self.count = count
        return layer.owners(self.per_query_head)

    def best(self, layer, owner, position):
        total = np.zeros(self.count)
        for head in owner.heads:
            norms = np.abs(layer.v[owner.kv][: self.count] @ layer.wo[head]).sum(axis=1)
            total += layer.full_row(head, position)[: self.count] * norms
        return np.sort(np.argsort(total)[self.count - self.budget :])

    def step(self, layer, owners, position):
        output = np.zeros((layer.heads, layer.v.shape[2]))
        for owner in owners:
            values = layer.v[owner.kv]
            kept = self.best(layer, owner, position)
            seen = [*kept, *range(self.count, position + 1)]
            for head in owner.heads:
                logits = layer.logits(head, layer.q[head][position], layer.k[owner.kv][seen])
                output[head] = layer.softmax(head, logits) @ values[seen]
        return output


class Quest(Hindsight):
    """At every step the pages of 4 entries whose channelwise bound on q.k is largest."""

    page = 4
    per_query_head = True

    def best(self, layer, owner, position):
        (head,) = owner.heads
        q, keys = layer.q[head][position], layer.k[owner.kv][: self.count]
        pages = [range(i, min(i + self.page, self.count)) for i in range(0, self.count, self.page)]
        bounds = [sum(max(q[c] * keys[i, c] for i in page) for c in range(len(q)))
                  for page in pages]
        best = np.argsort(bounds)[::-1][: self.budget // self.page]
        return sorted(i for x in best for i in pages[x])


def cosine(a, b) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def nearest(slots: list[Slot], key) -> tuple[int, float]:
    """Number and cosine of the slot whose key is most like this one."""
    found = [cosine(slot.key, key) for slot in slots]
    best = max(range(len(slots)), key=lambda i: (found[i], i))
    return best, found[best]


def convex(threshold: float):
    def merge(layer, owners, evicted):
        for owner, gone in zip(owners, evicted):
            targets = [nearest(owner.slots, slot.key) for slot in gone]
            for (best, similar), slot in zip(targets, gone):
                if similar <= threshold:
                    continue
                target = owner.slots[best]
                if not target.members:
                    target.members = [(target.key, target.value)]
                target.members += slot.members or [(slot.key, slot.value)]
                target.key = np.mean([key for key, _ in target.members], axis=0)
                target.value = np.mean([value for _, value in target.members], axis=0)

    return staticmethod(merge)


def d2o(layer, owners, evicted):
    found = [[nearest(owner.slots, slot.key) for slot in gone]
             for owner, gone in zip(owners, evicted)]
    threshold = np.mean([similar for part in found for _, similar in part])
    for owner, gone, part in zip(owners, evicted, found):
        for number, target in enumerate(owner.slots):
            merged = [(slot, np.exp(similar)) for (best, similar), slot in zip(part, gone)
                      if best == number and similar >= threshold]
            total = np.exp(1) + sum(weight for _, weight in merged)
            for name in ("key", "value"):
                whole = np.exp(1) * getattr(target, name)
                whole = whole + sum(weight * getattr(slot, name) for slot, weight in merged)
                setattr(target, name, whole / total)


def value_fold(layer, owners, evicted):
    for owner, gone in zip(owners, evicted):
        values = [slot.value for slot in owner.slots]
        sums, weights = [value.copy() for value in values], [1.0] * len(values)
        for slot in gone:
            best, similar = nearest(owner.slots, slot.key)
            if similar > 0:
                own, kept = np.linalg.norm(slot.value), np.linalg.norm(values[best])
                weight = similar * own / (own + kept)
                sums[best] += weight * slot.value
                weights[best] += weight
        for slot, whole, weight in zip(owner.slots, sums, weights):
            slot.value = whole / weight


def cam_expected(cache: Cache):
    """The victim's value goes to the 32 slots after it, by its share of their attention."""

    def merge(layer, owners, evicted):
        for owner, gone, rows in zip(owners, evicted, cache.rows):
            mean = np.mean(rows, axis=0)
            there = sorted([*owner.slots, *gone], key=lambda slot: slot.position)
            by_position = {}
            for slot in there:   # at the prompt the row counts entries, while decoding slots
                place = slot.position if len(mean) != len(there) else there.index(slot)
                by_position[slot.position] = mean[place]
            for slot in gone:
                later = [s for s in owner.slots if s.position > slot.position]
                average = np.mean([by_position[s.position] for s in later])
                share = min(1.0, by_position[slot.position] / average)
                for target in later[:32]:
                    target.value = target.value + share * slot.value / len(later[:32])

    return merge


def keepkv(layer, owners, evicted, threshold=0.0):
    """Eq. 7 with the newest query's scores as estimates; votes are counts."""
    last = layer.q.shape[1] - 1
    for owner, gone in zip(owners, evicted):
        query = np.mean([layer.q[h][last] for h in owner.heads], axis=0)
        estimate = {id(s): layer.scale * s.key @ query for s in [*owner.slots, *gone]}
        votes = {id(s): 1.0 for s in [*owner.slots, *gone]}
        targets = [nearest(owner.slots, slot.key) for slot in gone]
        for (best, similar), e in zip(targets, gone):
            if similar <= threshold:
                continue
            c = owner.slots[best]
            score_e, score_c = np.exp(estimate[id(e)]), np.exp(estimate[id(c)])
            p_e, p_c = votes[id(e)], votes[id(c)]
            mass = p_e * score_e + p_c * score_c
            share = p_e * score_e / mass
            mean = share * estimate[id(e)] + (1 - share) * estimate[id(c)]
            factor = np.log(mass / (p_e + p_c)) / mean
            c.key = factor * (share * e.key + (1 - share) * c.key)
            c.value = share * e.value + (1 - share) * c.value
            votes[id(c)], estimate[id(c)] = p_e + p_c, np.log(mass / (p_e + p_c))
            c.bias = np.full(len(owner.heads), np.log(p_e + p_c))


def keepkv_bias(layer, owners, evicted, threshold=0.0):
    """The same with a bias per query head instead of a scaled key."""
    last = layer.q.shape[1] - 1
    for owner, gone in zip(owners, evicted):
        there = [*owner.slots, *gone]
        queries = np.array([layer.q[h][last] for h in owner.heads])
        estimate = {id(s): layer.scale * queries @ s.key for s in there}
        everything = sum(np.exp(estimate[id(s)]) for s in there)
        targets = [nearest(owner.slots, slot.key) for slot in gone]
        for (best, similar), e in zip(targets, gone):
            if similar <= threshold:
                continue
            c = owner.slots[best]
            mass_e = np.exp(e.bias + estimate[id(e)])
            mass_c = np.exp(c.bias + estimate[id(c)])
            both = (mass_e + mass_c) / everything
            share = (both * mass_e / everything).sum() / (both**2).sum()
            mean = share * estimate[id(e)] + (1 - share) * estimate[id(c)]
            c.bias = np.log(mass_e + mass_c) - mean
            c.key = share * e.key + (1 - share) * c.key
            c.value = share * e.value + (1 - share) * c.value
            estimate[id(c)] = mean


def kivi(bits: int, group: int, residual: int):
    """Keys per channel in groups of entries, values per entry in groups of channels."""

    def round_trip(x):
        low, high = x.min(), x.max()
        step = (high - low) / np.float32(2**bits - 1)
        return low + np.rint((x - low) / step) * step if step else x

    def quantize(slots):
        keys = np.array([slot.key for slot in slots], dtype=np.float32)
        values = np.array([slot.value for slot in slots], dtype=np.float32)
        for begin in range(0, len(slots) // residual * residual, group):
            for channel in range(keys.shape[1]):
                part = slice(begin, begin + group)
                keys[part, channel] = round_trip(keys[part, channel])
        for entry in range(max(0, len(slots) - residual)):
            for begin in range(0, values.shape[1], group):
                part = slice(begin, begin + group)
                values[entry, part] = round_trip(values[entry, part])
        for slot, key, value in zip(slots, keys, values):
            slot.key, slot.value = key.astype(np.float64), value.astype(np.float64)

    return staticmethod(quantize)


def public(keys: str, values: str):
    """quantize=formats, entries in blocks of the package gguf, which rounds as llama.cpp does. A short block is
    filled with its least number, which changes no scale."""
    from gguf import GGMLQuantizationType, quants

    def round_trip(row, name):
        count, kind = len(row), GGMLQuantizationType[name.upper()]
        for begin in range(0, count, 32):
            block = row[begin : begin + 32]
            whole = np.full(32, block.min(), np.float32)
            whole[: len(block)] = block
            row[begin : begin + 32] = quants.dequantize(quants.quantize(whole, kind), kind)[: len(block)]
        return row

    def quantize(slots):
        for slot in slots:
            slot.key = round_trip(np.float32(slot.key), keys).astype(np.float64)
            slot.value = round_trip(np.float32(slot.value), values).astype(np.float64)

    return staticmethod(quantize)
