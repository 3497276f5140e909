"""Does the closed loop run the model as if its cache were merged, rounded, moved or chosen anew?

Judged by naive_caches.py and naive_model.py, which run the model a token, a head and a slot at a time.
Run: KVSIM_BIN=path/to/kvsim python3 tests/capture/test_live_caches.py
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from test_closed_loop import WithLoop, loop_module, masked_pass

import h5py
import naive_caches as naive
import numpy as np
import torch
from naive_model import NaiveModel

PROGRAM = os.environ.get("KVSIM_BIN", Path(__file__).resolve().parents[2] / "build" / "kvsim")


def with_kinds(cache: naive.Cache, **kinds) -> naive.Cache:
    """`cache` with other attributes: merge, quantize, decodes, period, inv_freq."""
    for name, kind in kinds.items():
        setattr(cache, name, kind)
    return cache


class ChangedCaches(WithLoop):
    """Merged, rounded and moved entries, and sets that change while the model runs."""

    def replayed(self, family, record, budget, name="live.nc") -> Path:
        results = self.folder / name
        subprocess.run([PROGRAM, "replay", self.trace_of(family), "--policy",
                        record, "--budget", budget, "-o", results, "--overwrite", "-q"],
                       check=True)
        return results

    def run_live(self, family, results, *options, **more):
        return self.run_loop(family, self.trace_of(family), results, "--kvsim",
                             PROGRAM, "--overwrite", *options, **more)

    def check(self, record, make, family="llama", share=0.5):
        """Losses of a record against those of the naive model with `make(B)` as its cache."""
        trace = self.trace_of(family)
        found = self.values(self.run_live(family, self.replayed(family, record, str(share))))
        with h5py.File(trace) as f:
            ids, n = f["tokens/id"][:], int(f.attrs["prompt_len"])
        folder = self.model_folder(family)
        part = NaiveModel(folder, make(int(n * share)), n).logits(ids).log_softmax(-1)
        full = masked_pass(folder, ids, n, [], None).log_softmax(-1)[n:]
        kl = (full.exp() * (full - part)).sum(-1).numpy()
        self.assertGreater(kl.mean(), 1e-3)
        np.testing.assert_allclose(found["kl_divergence"][0, 0], kl, rtol=1e-3, atol=2e-5,
                                   err_msg=record)
        following = torch.tensor(ids[n + 1 :].astype(np.int64))[:, None]
        nll = (full - part)[:-1].gather(-1, following)[:, 0].numpy()
        np.testing.assert_allclose(found["nll_difference"][0, 0, :-1], nll, rtol=1e-3, atol=1e-4)

    def inv_freq(self, family):
        with h5py.File(self.trace_of(family)) as f:
            return f["rope/inv_freq"][:]

    def test_merged_slots(self):
        last = ",score_estimate=last,merge_threshold=0"
        merges = {"convex,merge_threshold=0.1": naive.convex(0.1), "d2o": naive.d2o,
                  "value-fold": naive.value_fold, "keepkv" + last: naive.keepkv,
                  "keepkv-bias" + last: naive.keepkv_bias}
        for kind, merge in merges.items():
            with self.subTest(kind):
                self.check("knorm,merge=" + kind, lambda b: with_kinds(naive.Cache(b), merge=merge))

    def test_merged_slots_beside_sliding_layers_softcap_and_sinks(self):
        for family in ("gemma2", "gpt_oss"):
            with self.subTest(family):
                merge = naive.convex(0.1)
                self.check("knorm,merge=convex,merge_threshold=0.1",
                           lambda b: with_kinds(naive.Cache(b), merge=merge), family)

    def test_rounded_entries(self):
        self.check("knorm,quantize=kivi,quant_bits=2,quant_group=4,quant_residual=8",
                   lambda b: with_kinds(naive.Cache(b), quantize=naive.kivi(2, 4, 8)))
        # No number lies where float32 decides its code, as one value of this model does with q5_1.
        for keys, values in (("q8_0", "q4_1"), ("q4_0", "q5_0"), ("q5_1", "mxfp4")):
            self.check(f"knorm,quantize=formats,quant_keys={keys},quant_values={values},quant_residual=0",
                       lambda b, forms=(keys, values): with_kinds(
                           naive.Cache(b), quantize=naive.public(*forms)))

    def test_positions_counted_in_the_cache(self):
        for family in ("llama", "qwen2"):
            inv_freq = self.inv_freq(family)
            for record, decodes in (("streaming,positions=cache", False),
                                    ("streaming:official", True)):
                with self.subTest(f"{family} {record}"):
                    self.check(record, lambda b: with_kinds(
                        naive.Streaming(b), decodes=decodes, inv_freq=inv_freq), family)

    def test_sets_held_at_every_step(self):
        self.check("tova:official", lambda b: with_kinds(naive.Tova(b), decodes=True))
        self.check("h2o:official", lambda b: with_kinds(naive.HeavyHitters(b), decodes=True))
        self.check("h2o:official", lambda b: with_kinds(naive.HeavyHitters(b), decodes=True),
                   "gpt_oss")

    def test_merging_at_every_step(self):
        self.check("knorm,schedule=decode,merge=convex,merge_threshold=0.1", lambda b: with_kinds(
            naive.Cache(b), decodes=True, merge=naive.convex(0.1)))

        def cam(budget):
            cache = with_kinds(naive.Streaming(budget), decodes=True)
            return with_kinds(cache, merge=naive.cam_expected(cache))

        self.check("cam:expected", cam)

    def test_compression_of_the_restored_cache_every_few_steps(self):
        self.check("tova,schedule=periodic,period=5",
                   lambda b: with_kinds(naive.SafeTova(b), period=5))
        self.check("knorm,schedule=periodic,period=4,merge=convex,merge_threshold=0.1",
                   lambda b: with_kinds(naive.Cache(b), period=4, merge=naive.convex(0.1)))

    def test_prompts_that_come_in_chunks(self):
        """Chunks see what the compression before them left, so that their states are others, too."""
        self.check("knorm,schedule=chunked,chunk=16", lambda b: with_kinds(naive.Cache(b), chunk=16))
        for family, chunk in (("llama", 7), ("gemma2", 5), ("gpt_oss", 30)):
            with self.subTest(family):
                self.check(f"tova,schedule=chunked,chunk={chunk}",
                           lambda b, c=chunk: with_kinds(naive.SafeTova(b), chunk=c), family)
        self.check("streaming,sinks=4,schedule=chunked,chunk=9",
                   lambda b: with_kinds(naive.Streaming(b), chunk=9))

    def test_chunks_that_are_compressed_by_themselves(self):
        # Keys of one token have one norm in layer 0, so that rounding would choose among them: with 21 it need not.
        for record, make, chunk in (("knorm", naive.Cache, 21), ("tova", naive.SafeTova, 7)):
            with self.subTest(record):
                self.check(f"{record},schedule=chunked,chunk={chunk},chunk_scope=chunk",
                           lambda b, m=make, c=chunk: with_kinds(m(b), chunk=c, alone=0.5))

    def test_hindsight_step_by_step(self):
        self.check("oracle-step", naive.Hindsight)

    def test_pages_read_step_by_step(self):
        for family in ("llama", "gpt_oss"):
            with self.subTest(family):
                self.check("quest,skip_layers=none,block=4", naive.Quest, family, share=0.3)

    def test_of_some_layers_only(self):
        trace, results = self.trace_of("llama"), self.folder / "some.nc"
        subprocess.run([PROGRAM, "replay", trace, "--policy", "tova:official",
                        "--budget", "0.5", "--layers", "0,2", "-o", results, "--overwrite", "-q"],
                       check=True)
        found = self.values(self.run_live("llama", results))
        with h5py.File(trace) as f:
            ids, n = f["tokens/id"][:], int(f.attrs["prompt_len"])
        folder = self.model_folder("llama")
        tova = with_kinds(naive.Tova(n // 2), decodes=True)
        part = NaiveModel(folder, tova, n, [0, 2]).logits(ids).log_softmax(-1)
        full = masked_pass(folder, ids, n, [], None).log_softmax(-1)[n:]
        kl = (full.exp() * (full - part)).sum(-1).numpy()
        np.testing.assert_allclose(found["kl_divergence"][0, 0], kl, rtol=1e-3, atol=2e-5)

    def test_nothing_evicted_is_the_model_bit_for_bit(self):
        # The budget of schedule=decode counts later entries, too: everything is skipped instead.
        for record, budget in (("keepkv", "1.0"), ("snapkv,window=8,merge=convex", "1.0"),
                               ("d2o:code", "1.0"), ("streaming,positions=cache", "1.0"),
                               ("knorm,schedule=periodic,period=4,skip_layers=0+1+2+3", "0.5"),
                               ("tova:official,skip_layers=0+1+2+3", "0.3"),
                               ("oracle-step", "1.0"), ("knorm,schedule=chunked,chunk=9", "1.0"),
                               ("knorm,quantize=kivi,quant_residual=512", "1.0")):
            with self.subTest(record):
                results = self.replayed("llama", record, budget)
                found = self.values(self.run_live("llama", results))
                self.assertEqual(found["kl_divergence"].max(), 0)
                self.assertEqual(np.nanmax(np.abs(found["nll_difference"])), 0)
                self.assertEqual(found["top1_agreement"].min(), 1)

    def test_several_beside_kept_sets_and_resumed(self):
        trace, results = self.trace_of("llama"), self.folder / "mixed.nc"
        records = ["knorm", "knorm,merge=convex,merge_threshold=0.1", "tova:official",
                   "tova,schedule=periodic,period=5"]
        policies = [word for record in records for word in ("--policy", record)]
        subprocess.run([PROGRAM, "replay", trace, *policies, "--budget", "0.3,0.6",
                        "--save-keep", "-o", results, "--overwrite", "-q"], check=True)
        whole = self.values(self.run_live("llama", results))["kl_divergence"]
        for p, record in enumerate(records):
            one = self.values(self.run_live("llama", self.replayed_keep(record)))
            np.testing.assert_allclose(one["kl_divergence"][0, 0], whole[p, 1], rtol=1e-4,
                                       atol=1e-6)
        calls, own = [], loop_module.ClosedLoop.losses

        def interrupted(this, caches):
            calls.append(len(caches))
            if sum(calls) > 5:
                raise KeyboardInterrupt
            return own(this, caches)

        own_batch = loop_module.ClosedLoop.batch
        loop_module.ClosedLoop.batch = 1
        try:
            loop_module.ClosedLoop.losses = interrupted
            self.run_live("llama", results, name="cut.nc", code=130)
        finally:
            loop_module.ClosedLoop.losses = own
        try:
            found = self.values(self.run_loop("llama", trace, results, "--kvsim",
                                              PROGRAM, name="cut.nc"))
        finally:
            loop_module.ClosedLoop.batch = own_batch
        np.testing.assert_allclose(found["kl_divergence"], whole, rtol=1e-4, atol=1e-6)

    def replayed_keep(self, record) -> Path:
        results = self.folder / "alone.nc"
        subprocess.run([PROGRAM, "replay", self.trace_of("llama"), "--policy",
                        record, "--budget", "0.6", "--save-keep", "-o", results, "--overwrite",
                        "-q"], check=True)
        return results

    def test_requests_that_are_no_requests(self):
        with h5py.File(self.trace_of("llama")) as f:
            heads, kv = int(f.attrs["num_query_heads"]), int(f.attrs["num_kv_heads"])
            d = int(f.attrs["head_dim"])
            count, queries = int(f.attrs["total_len"]), len(f["query_position"])
        whole = np.zeros(heads * queries * d + 2 * kv * count * d, np.float32)
        broken = whole.copy()
        broken[-1] = np.nan
        for head, body, said in (
            ([0, 0], b"", "ends too early"),
            ([1, 0, 0], b"", "no such policy"),
            ([0, -1, 0], b"", "no such budget"),
            ([0, 0, 9], b"", "no such layer"),
            ([0, 0, 0], whole[1:].tobytes(), "ends too early"),
            ([0, 0, 0], broken.tobytes(), "v at flat index"),
        ):
            done = subprocess.run([PROGRAM, "attend", self.trace_of("llama"), "--policy", "knorm",
                                   "--budget", "0.5"], capture_output=True,
                                  input=np.array(head, np.int32).tobytes() + body)
            message = done.stderr.decode()
            self.assertEqual((done.returncode, message.count("\n")), (3, 1), message)
            self.assertIn(said, message)

    def test_refusals(self):
        results = self.replayed("llama", "tova:official", "0.5")
        self.run_live("llama", results, "--generate", 3, name="no.nc", code=2)
        self.assertIn("--generate", self.message)
        self.run_live("llama", results, "--kvsim", "no-such-program", name="no.nc", code=2)
        self.assertIn("no-such-program", self.message)
        self.run_live("llama", results, "--kvsim", "false", name="no.nc", code=1)
        across = "layer-defensivekv,window=8,schedule=periodic,period=5"
        self.run_live("llama", self.replayed("llama", across, "0.5"), name="no.nc", code=2)
        self.assertIn("layer-defensivekv,window=8,schedule=periodic", self.message)


if __name__ == "__main__":
    unittest.main()
