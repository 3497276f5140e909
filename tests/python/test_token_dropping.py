"""Tests of policies as functions for LMCache's SDK, on tensors of its layout, by the program itself.
Run: python tests/python/test_token_dropping.py

Mappings with the SDK's names stand for it.
"""

import enum
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import numpy as np
import torch

import kvsim

LAYERS, TOKENS, KV, GROUP, SIZE = 3, 301, 2, 3, 16
HEADS = KV * GROUP
IDS = [7 * at % 1000 for at in range(TOKENS)]
INV_FREQ = 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)


class Kind(enum.Enum):
    """The SDK's names of tensors."""

    KV = "kv"
    QUERY = "query"


class ModifyTensors(dict):
    """As the SDK hands it over: a mapping that knows where queries begin."""

    def __init__(self, tensors, segment_start_token_id):
        super().__init__(tensors)
        self.segment_start_token_id = segment_start_token_id


def made_up(alike=True, seed=0):
    """kv and queries in float16; `alike`: all layers the same."""
    draw = np.random.default_rng(seed)
    made = [draw.normal(size=(first, 1 if alike else LAYERS, TOKENS, heads * SIZE)).astype(np.float16)
            for first, heads in ((2, KV), (1, HEADS))]
    return [np.repeat(one, LAYERS, axis=1) if alike else one for one in made]


def drop_tokens(policy, keep=0.3, **given):
    return kvsim.drop_tokens(policy, keep, kv_heads=KV, threads=1, **given)


def bits(tensor):
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(tensor).view(np.uint8)


class TokenDroppingTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.kv, self.queries = made_up()

    def replayed(self, policy, keep, kv, queries, inv_freq=None, scale=None):
        """[layers, heads, tokens] kept by `kvsim replay` of a trace of the same tensors, with an output
        projection and later tokens that the function has never seen."""
        path, draw = self.folder / "trace.h5", np.random.default_rng(9)
        later = 5
        total = TOKENS + later
        with kvsim.TraceWriter(path, "float16", overwrite=True) as writer:
            writer.describe(model="mine", num_layers=LAYERS, prompt_len=TOKENS,
                            query_positions=range(total), inv_freq=inv_freq)
            for layer in range(LAYERS):
                parts = []
                for rows, heads in ((queries[0, layer], HEADS), (kv[0, layer], KV), (kv[1, layer], KV)):
                    rows = rows.reshape(TOKENS, heads, SIZE).swapaxes(0, 1)
                    parts.append(np.concatenate([rows, draw.normal(size=(heads, later, SIZE))], 1))
                writer.layer(layer, queries=parts[0], keys=parts[1], values=parts[2], scale=scale,
                             wo=draw.normal(size=(HEADS, SIZE, 24)))
        results = kvsim.replay(path, policy, keep, save_keep=True, threads=1)
        found = [results[name].values[0, 0] for name in ("kept_mask", "kept_mask_query") if name in results]
        return next(one for one in found if not np.isnan(one).any()) == 1   # NaN: of the other kind of head

    def test_what_is_kept_is_what_replay_keeps(self):
        for policy, keep, given in (
                ("streaming", 0.3, {}), ("streaming", 0.507, {}), ("full", 0.3, {}), ("lm-infinite", 0.1, {}),
                ("knorm,union=mean", 0.3, {}), ("keydiff,union=max", 0.55, {}), ("lagkv,union=mean", 0.3, {}),
                ("cur,union=mean", 0.2, {}), ("snapkv,union=mean", 0.3, {}), ("h2o,union=mean", 0.3, {}),
                ("snapkv:official,union=mean", 0.3, {}), ("snapkv,union=mean,block=16", 0.3, {}),
                ("snapkv,union=mean", 1.0, {}), ("random,union=mean,union_layers=yes", 0.3, {}),
                ("snapkv,union=mean,union_layers=yes", 0.3, {}), ("h2o,union=max,union_layers=yes", 0.2, {}),
                ("keydiff,union=best-rank,union_layers=yes,block=8", 0.4, {}),
                ("expected-attention,union=mean", 0.3, {"inv_freq": INV_FREQ}),
                ("snapkv,union=mean", 0.3, {"attention": {"scale": 0.9, "window": None, "softcap": None,
                                                          "sinks": None}})):
            with self.subTest(policy=policy, keep=keep, **given):
                self.kv, self.queries = made_up(alike="union_layers" not in policy)
                kept = self.replayed(policy, keep, self.kv, self.queries, given.get("inv_freq"),
                                     given.get("attention", {}).get("scale"))
                self.assertTrue((kept == kept[0, 0]).all())
                expected = np.flatnonzero(kept[0, 0])
                kv, ids = drop_tokens(policy, keep, **given)(
                    {"kv": self.kv, "query": self.queries}, range(TOKENS))
                self.assertEqual(ids, expected.tolist())
                np.testing.assert_array_equal(kv[1], self.kv[1][:, expected])
                if not given.get("inv_freq", np.zeros(0)).size:
                    np.testing.assert_array_equal(bits(kv), bits(self.kv[:, :, expected]))

    def test_numbers_of_tokens_are_exact_shares(self):
        for tokens in (17, 100, 257):
            for keep in (0.3, 0.29, 0.07):
                _, ids = drop_tokens("streaming", keep)(self.kv[:, :, :tokens], range(tokens))
                self.assertEqual(len(ids), round(keep * 100) * tokens // 100)

    def test_types_layouts_and_ways_to_hand_over(self):
        drop = drop_tokens("snapkv,union=mean")
        expected, ids = drop(self.kv, IDS, queries=self.queries)
        self.assertEqual(ids, [IDS[at] for at in np.flatnonzero(
            self.replayed("snapkv,union=mean", 0.3, self.kv, self.queries)[0, 0])])
        before = self.kv.copy()
        for kind in (torch.float16, torch.float32, torch.bfloat16):
            kv, queries = (torch.from_numpy(one).to(kind) for one in (self.kv, self.queries))
            sets = []
            for handed in ({"kv": kv, "query": queries}, {Kind.KV: kv, Kind.QUERY: queries},
                           ModifyTensors({Kind.KV: kv, Kind.QUERY: queries}, 0)):
                found, kept = drop(handed, IDS)
                at = torch.tensor([index for index, one in enumerate(IDS) if one in set(kept)])
                self.assertEqual((found.dtype, list(found.shape)), (kind, [2, LAYERS, 90, KV * SIZE]))
                np.testing.assert_array_equal(bits(found), bits(kv[:, :, at]))
                sets.append(kept)
            self.assertEqual(sets[0], sets[1])
            self.assertEqual(sets[0], sets[2])
            if kind != torch.bfloat16:   # both hold the float16 numbers
                self.assertEqual(sets[0], ids)
        by_heads, kept = drop(self.kv.reshape(2, LAYERS, TOKENS, KV, SIZE), torch.tensor(IDS),
                              queries=self.queries.reshape(1, LAYERS, TOKENS, HEADS, SIZE))
        self.assertEqual(kept, ids)
        np.testing.assert_array_equal(by_heads.reshape(expected.shape), expected)
        np.testing.assert_array_equal(self.kv, before)

    def test_the_last_queries_are_enough_for_a_window(self):
        drop = drop_tokens("snapkv,union=mean,window=32")
        _, expected = drop(self.kv, IDS, queries=self.queries)
        last = self.queries[:, :, -40:]
        self.assertEqual(drop({"kv": self.kv, "query": last}, IDS)[1], expected)
        places = [*range(10), *range(TOKENS - 40, TOKENS)]
        self.assertEqual(drop(self.kv, IDS, queries=self.queries[:, :, places], query_positions=places)[1],
                         expected)
        self.assertEqual(drop(ModifyTensors({Kind.KV: self.kv, Kind.QUERY: last}, TOKENS - 40), IDS)[1],
                         expected)
        with self.assertRaisesRegex(kvsim.UsageError, "found 40 for 101 tokens from 200 on.*query_positions"):
            drop(ModifyTensors({Kind.KV: self.kv, Kind.QUERY: last}, 200), IDS)
        with self.assertRaisesRegex(kvsim.DataError, "the tensors: .*needs"):
            drop({"kv": self.kv, "query": self.queries[:, :, -8:]}, IDS)
        with self.assertRaisesRegex(kvsim.DataError, "the tensors: .*needs"):
            drop(self.kv, IDS)

    def test_kept_keys_are_turned_to_their_new_places(self):
        def turned(rows, places, neighbours):
            """[.., tokens, KV, SIZE] from place 0 to `places`."""
            angle = np.asarray(places)[:, None, None] * INV_FREQ
            a, b = (rows[..., ::2], rows[..., 1::2]) if neighbours else np.split(rows, 2, -1)
            parts = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
            return np.stack(parts, -1).reshape(rows.shape) if neighbours else np.concatenate(parts, -1)

        plain = np.random.default_rng(3).normal(size=(LAYERS, TOKENS, KV, SIZE))
        for pairs in ("halves", "neighbours"):
            keys = turned(plain, np.arange(TOKENS), pairs == "neighbours")
            kv = np.stack([keys, plain]).astype(np.float32)
            for given in (kv, torch.from_numpy(kv)):
                drop = kvsim.drop_tokens("streaming", 0.3, inv_freq=INV_FREQ, rope_pairs=pairs, threads=1)
                found, kept = drop(given, range(TOKENS))
                self.assertEqual(kept[:4], [0, 1, 2, 3])
                expected = turned(plain[:, kept], np.arange(len(kept)), pairs == "neighbours")
                np.testing.assert_allclose(np.asarray(found[0]), expected, atol=2e-6)
                np.testing.assert_array_equal(np.asarray(found[1]), kv[1][:, kept])
        # Half of a head's dimensions: the others stay.
        found, kept = kvsim.drop_tokens("streaming", 0.3, inv_freq=INV_FREQ[:4], threads=1)(kv, range(TOKENS))
        np.testing.assert_array_equal(found[0][..., 8:], kv[0][:, kept][..., 8:])
        self.assertTrue((found[0][:, 4:, :, :8] != kv[0][:, kept][:, 4:, :, :8]).all())

    def test_turned_keys_are_those_of_the_kept_tokens_alone(self):
        """Keys of a first layer say nothing but their token and its place."""
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=1000, hidden_size=HEADS * SIZE, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=HEADS, num_key_value_heads=KV)).eval()

        def cached(ids):
            with torch.no_grad():
                layers = model(torch.tensor([ids])).past_key_values.layers
            return torch.stack([torch.stack([getattr(one, part)[0].transpose(0, 1).flatten(1)
                                             for one in layers]) for part in ("keys", "values")])

        kv, kept = drop_tokens("streaming", inv_freq=model.model.rotary_emb.inv_freq)(cached(IDS), IDS)
        torch.testing.assert_close(kv[:, 0], cached(kept)[:, 0], atol=2e-6, rtol=1e-5)

    def test_a_function_is_a_policy(self):
        def by_place(layer):
            return np.tile(np.sin(layer.positions), (len(layer.keys), 1))

        _, kept = drop_tokens(by_place)(self.kv, range(TOKENS))
        self.assertEqual(kept, sorted(np.argsort(-np.sin(np.arange(TOKENS)))[:90].tolist()))

        def by_projection(layer):
            return np.outer(layer.wo[::GROUP, 0, 0], np.cos(layer.positions * layer.wo[0, 0, 0]))

        with self.assertRaisesRegex(kvsim.UsageError, "chooses by the output projection"):
            drop_tokens(by_projection)

    def test_sets_that_differ_are_refused_where_they_do(self):
        kv, queries = made_up(alike=False)
        for policy, said in (("snapkv", r"layer 0, head 1 keeps other tokens .*union_layers=yes"),
                             ("snapkv,union=mean", r"layer 1, head 0 keeps other tokens than layer 0"),
                             ("snapkv,union=mean,union_layers=yes,allocate=pyramid", "layer 1, head 0 keeps")):
            with self.assertRaisesRegex(kvsim.UsageError, f"^{policy}: {said}"):
                drop_tokens(policy)(kv, IDS, queries=queries)
        _, kept = drop_tokens("streaming")(kv, range(TOKENS))
        self.assertEqual(len(kept), 90)

    def test_the_page_says_which_policies_are_served(self):
        kv, queries = made_up(alike=False)
        page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
        table = re.findall(r"^\| (keys and values.*|also queries.*|refused.*?) \| (.*) \|$", page, re.M)
        self.assertEqual(len(table), 10)
        said = {"refused: W_O": "chooses by the output projection", "refused: a probe": "needs a probe",
                "refused: later queries": "chooses by what comes after|residual_norm",
                "refused: compresses again": "found schedule=", "refused: merges": "merge=",
                "refused: texts": "found no|no file|quantize=", "refused when called": "keeps other tokens"}
        for what, names in table:
            for name in re.findall("`([a-z0-9:-]+)=?`", names):
                with self.subTest(what=what, name=name):
                    if name == "quantize":
                        name = "streaming,quantize=kivi"
                    rotation = {"inv_freq": INV_FREQ} if "inv_freq" in what or "refused" in what else {}
                    seen = None if what.startswith("keys") else queries
                    if not what.startswith("refused"):
                        record = name if name in ("full", "streaming", "lm-infinite") else \
                            f"{name},union=mean,union_layers=yes,allocate=uniform"
                        drop_tokens(record, **rotation)(kv, IDS, queries=seen)
                        continue
                    with self.assertRaisesRegex(kvsim.Error, next(
                            one for start, one in said.items() if what.startswith(start))):
                        drop_tokens(name, **rotation)(kv, IDS, queries=seen)

    def test_what_is_wrong_is_one_line(self):
        for keep in (0, -0.1, 1.5, True, "half", float("nan")):
            with self.assertRaisesRegex(kvsim.UsageError, "^keep: found .*expected 0 < keep <= 1"):
                drop_tokens("streaming", keep)
        for given, said in (({"inv_freq": [[1.0]]}, "inv_freq: found shape"),
                            ({"inv_freq": [1.0], "rope_pairs": "thirds"}, "rope_pairs: found 'thirds'")):
            with self.assertRaisesRegex(kvsim.UsageError, said):
                drop_tokens("streaming", **given)
        with self.assertRaisesRegex(kvsim.UsageError, "no-such-policy"):
            drop_tokens("no-such-policy")
        with self.assertRaisesRegex(kvsim.UsageError, "does not say how many heads there are: give kv_heads"):
            kvsim.drop_tokens("streaming", 0.3)(self.kv, IDS)
        drop = drop_tokens("streaming")
        for tensors, ids, given, said in (
                ({}, IDS, {}, "^tensors: found none, expected kv"),
                ({"query": self.queries}, IDS, {}, "^tensors: found query, expected kv"),
                (self.kv[0], IDS, {}, "^tensors: found shape"), (self.kv[:1], IDS, {}, "^tensors: found shape"),
                (self.kv[:, :, :0], [], {}, "^tensors: found shape"),
                (self.kv[..., :31], IDS, {}, "found 31 numbers for a token, expected a multiple of 2 KV heads"),
                (self.kv.astype(np.int8), IDS, {}, "found int8, expected float16, float32, bfloat16"),
                (self.kv.astype(np.float64), IDS, {}, "found float64"),
                (torch.from_numpy(self.kv).to(torch.float8_e4m3fn), IDS, {}, "found float8_e4m3fn"),
                (self.kv, IDS[1:], {}, "^token_ids: found 300, expected one for each of 301 tokens"),
                (self.kv, IDS, {"queries": self.queries[:, :1]}, "^queries: found shape"),
                (self.kv, IDS, {"queries": self.queries[..., :48]}, "^queries: found shape"),
                (self.kv, IDS, {"queries": self.queries, "query_positions": [1]}, "^query_positions: found 1"),
                (np.full_like(self.kv, np.nan), IDS, {}, "layer 0: .*NaN")):
            with self.subTest(said=said), self.assertRaisesRegex(kvsim.Error, said):
                drop(tensors, ids, **given)
        with self.assertRaisesRegex(kvsim.UsageError, "keeps none of 301 tokens"):
            drop_tokens("streaming", 0.001)(self.kv, IDS)

    def test_it_needs_no_torch_and_leaves_no_files(self):
        program = ("import sys; sys.modules['torch'] = None; import numpy, kvsim; "
                   "print(kvsim.drop_tokens('streaming', 0.3)(numpy.ones((2, 1, 20, 2, 4)), range(20))[1])")
        program = program.replace("4))", "4), 'float32')")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={
            **os.environ, "PYTHONPATH": str(ROOT / "python"), "TMPDIR": str(self.folder)}, check=False)
        self.assertEqual((done.stdout, done.stderr), ("[0, 1, 2, 3, 18, 19]\n", ""))
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
