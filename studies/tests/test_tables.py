"""Tests of the tables of the pages, which are made from the CSV files there."""

import csv
import re
import shutil
import tempfile
import unittest
from pathlib import Path

import numpy as np
import pandas

from findings import (agnostic, claims, contributed, decoding, instructions, long_tables, pages, plan,
                      readings, reread, runs, second_question, shapes)
from kvsim.errors import DataError
from kvsim.studies import table as boards
from kvsim.studies.folder import Folder
from texts import KINDS, text_of, worked

ROOT = Path(__file__).resolve().parents[2]


class RereadTest(unittest.TestCase):
    """Two texts set aside, two policies beside KVzip."""

    def study(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name, "fresh.csv")
        columns = [*runs.LOSSES, *runs.REPLAYED]
        losses = {"kvzip": (0.2, 0.1), plan.REREAD: (0.1, 0.1), "snapkv": (0.8, 0.1)}
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [["text", "prompt_tokens", "seed", "group", "policy", "budget", *columns]] +
                [[text.kind, text.prompt_tokens, text.seed, "twice", policy, budget,
                  values[k], *[0] * (len(columns) - 1)]
                 for k, text in enumerate(plan.FRESH[:2]) for policy, values in losses.items()
                 for budget in reread.BUDGETS])
        return reread.study_of(path)

    def test_losses_are_relative_to_kvzip_with_intervals_and_the_worst_text(self):
        study = self.study()
        header, rows = reread.table(study, ("snapkv", plan.REREAD, "lava"))
        self.assertEqual(header, ["policy", "0.1", "0.2", "0.35", "0.5"])
        # Ratios 4 and 1: mean 2; Student's t of one degree is 12.706, sd of logs over sqrt 2 is ln 2.
        reach = 2 ** 12.7062047
        self.assertEqual(rows[0][1], f"2 [{2 / reach:.2g}, {2 * reach:.0f}]")
        self.assertEqual(rows[1][0], f"`{plan.REREAD}`")
        self.assertTrue(rows[1][1].startswith("0.71 ["))
        self.assertEqual(rows[2], ["`lava`", "-", "-", "-", "-"])   # nobody ran it
        self.assertEqual(rows[3], ["`kvzip`, nats", *["0.14"] * 4])
        self.assertEqual(reread.worst(study)[1][0][1], "1")
        first = reread.by_text(study)[1][0]
        self.assertEqual(first, ["python 1", "0.5, 0.5, 0.5, 0.5", "nan, nan, nan, nan",
                                 "0.2, 0.2, 0.2, 0.2"])


class ReadingsTest(unittest.TestCase):
    """How much a head copies, on a few numbers."""

    def test_a_head_that_looks_at_the_entry_behind_copies(self):
        keys, none = np.eye(3, 4) * 10, np.zeros((3, 4))
        ahead = np.roll(keys, -1, axis=0)   # token t asks for entry t + 1
        self.assertAlmostEqual(readings.copying(ahead, keys, none, (0, 3), 1.0), 1, places=6)
        # Without a preference: 1 of 3 entries and the part's own tokens so far, twice.
        self.assertAlmostEqual(readings.copying(none, none, none, (0, 3), 1.0),
                               (1 / 4 + 1 / 5) / 2)

    def test_moved_queries_see_all_entries_and_their_own_piece(self):
        none = np.zeros((4, 4))
        # Queries 0, 1 and 2: four entries, and those of the piece up to the query once more.
        self.assertAlmostEqual(readings.copying_moved(none, none, np.zeros(2), 1.0),
                               (1 / 5 + 1 / 6 + 1 / 7) / 3)
        keys = np.eye(4) * 10
        ahead = np.roll(keys, -1, axis=0)
        self.assertAlmostEqual(readings.copying_moved(ahead, keys, np.zeros(2), 1.0), 1, places=6)
        # Half a turn of the first pair, four eighths of one, takes a query elsewhere.
        self.assertLess(readings.copying_moved(ahead, keys, np.array([np.pi / 4, 0]), 1.0), 0.7)

    def test_the_switching_task_stands_beside_the_mean_of_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            studies = Path(folder)
            (studies / "losses").mkdir()
            whats = [(policy, f"{heads}: {what}", budget) for policy in readings.POLICIES
                     for heads in ("copying", "others")
                     for what, budget in (("seen later, share kept", "0.1"),
                                          ("attention on the entry behind", ""))]
            whats += [(own, what, "0.1") for own in ("moved only", "real only") for what in (
                "in copying heads", "among the newest 128", "seen later, share")]
            with (studies / "losses/readings.csv").open("w", newline="") as file:
                csv.writer(file).writerows([readings.HEADER] + [
                    [text, 1, budget, of, what, value] for of, what, budget in whats
                    for text, value in (("switch", 0.5), ("code", 0.1), ("perl", 0.3))])
            header, rows = readings.table(studies)
        self.assertEqual(header[1], "switching task")
        self.assertEqual(len(rows), 14)
        self.assertEqual(rows[0][1:], ["0.50", "0.20 (0.10 to 0.30)"])


class SecondQuestionTest(unittest.TestCase):
    """One text, two questions, a set chosen before them, and one for each."""

    def studies(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        studies = Path(folder.name)
        (studies / "losses").mkdir()
        losses = {"": (0.4, 0.1), "1": (0.2, 0.2), "2": (0.8, 0.05)}   # on questions 1 and 2
        with (studies / "losses/second_question.csv").open("w", newline="") as file:
            csv.writer(file).writerows([second_question.HEADER] + [
                [51, policy, chosen, k + 1, budget, loss] for policy in second_question.LOOKING
                for chosen, values in losses.items() for k, loss in enumerate(values)
                for budget in second_question.BUDGETS])
        return studies

    def test_sets_are_told_apart_by_the_question_that_they_were_chosen_for(self):
        header, rows = second_question.table(self.studies())
        found = {row[0]: dict(zip(header, row)) for row in rows}["`snapkv`"]
        self.assertEqual(found["before any question"], "0.20, 0.20, 0.20")   # of 0.4 and 0.1
        self.assertEqual(found["for this question"], "0.10, 0.10, 0.10")     # of 0.2 and 0.05
        self.assertEqual(found["for another question"], "0.40, 0.40, 0.40")  # of 0.8 and 0.2
        ratios = second_question.intervals(self.studies())[1]
        self.assertEqual(ratios[0][:2], ["`snapkv`", "for this question"])
        self.assertTrue(ratios[0][2].startswith("4.00 [4.00"), ratios[0])

    def test_questions_are_taken_out_of_a_generated_text(self):
        asked = "\n".join(f"{k}. What is {k}?" for k in range(1, 8))
        answer = "\n\n".join(f"{k}. It is {k}." for k in range(1, 8))
        context, pairs = second_question.questions_of(
            f'<turn role="user">Facts.\n\n<compress/>Answer.\n{asked}</turn>\n', answer)
        self.assertEqual(context, '<turn role="user">Facts.\n\n')
        self.assertEqual(len(pairs), second_question.QUESTIONS)
        self.assertEqual(pairs[4], ("What is 5?", "It is 5."))


class DecodingTest(unittest.TestCase):
    """Closed loops of worked answers: stretches, intervals, the table."""

    def studies(self):
        from xarray import Dataset

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        studies = Path(folder.name)
        (studies / "losses").mkdir()
        losses = [[0.25] * 32 + [0.75] * 32, [1.0] * 64]
        part = Folder(studies / "decoding").next_part(decoding.NAMES[0])
        part.loop.parent.mkdir(parents=True)
        part.results.touch()
        Dataset({"kl_divergence": (("policy", "budget", "step"), [[one] for one in losses]),
                 "budget_label": ("budget", ["512"]),
                 "policy": ("policy", ["morphkv", "r-kv"])}).to_netcdf(part.loop, engine="h5netcdf")
        with (studies / "losses/decoding.csv").open("w", newline="") as file:
            csv.writer(file).writerows([decoding.HEADER, *decoding.rows(studies)])
        return studies

    def test_losses_of_an_answer_and_of_its_eighths(self):
        studies = self.studies()
        of = decoding.read(studies)[decoding.NAMES[0], "morphkv", 512]
        self.assertEqual((of["all"], of["1"], of["8"]), (0.5, 0.25, 0.75))
        self.assertTrue(0 < of["low"] < 0.5 < of["high"], of)
        self.assertAlmostEqual(of["low"] * of["high"], 0.5 ** 2, places=4)   # on logarithms
        header, rows = decoding.table(studies)
        self.assertEqual(header, ["policy", "ledger, 512"])
        found = dict(rows)
        self.assertEqual(found["`r-kv`"], "1.00 [1.00, 1.00]")
        self.assertEqual(found["`random:prompt`"], "-")

    def test_worked_answers_are_long_and_right(self):
        for kind in worked.KINDS:
            with self.subTest(kind=kind.name):
                text = text_of(kind, 1, 60)
                self.assertGreater(len(text.answer), 10000)
                self.assertEqual(text, text_of(kind, 1, 60))
                self.assertNotEqual(text, text_of(kind, 2, 60))
                self.assertTrue(text_of(kind, 1, 400).answer.startswith(text.answer))
        ledger = text_of(KINDS["ledger"], 1, 60).answer
        sums = re.findall(r"(\d+) \+ (\d+) = (\d+) dollars", ledger)
        self.assertGreater(len(sums), 50)
        for a, b, total in sums:
            self.assertEqual(int(a) + int(b), int(total))


class ContributedTest(unittest.TestCase):
    """studies/contributed: every folder has the layout, and what is missing is named."""

    STUDIES = ROOT / "studies/contributed"

    def test_every_folder_has_the_layout_and_a_row(self):
        rows = contributed.table(ROOT / "studies")[1]
        folders = sorted(one.name for one in self.STUDIES.iterdir())
        self.assertEqual([row[0] for row in rows], folders)
        for folder in folders:
            for file in (self.STUDIES / folder).iterdir():
                self.assertIn(file.name, ("study.json", *contributed.TEXTS, *contributed.TASKS))

    def test_a_study_is_copied_and_what_it_lacks_is_named(self):
        with tempfile.TemporaryDirectory() as place:
            study, studies = Path(place) / "study", Path(place) / "studies"
            shutil.copytree(next(self.STUDIES.iterdir()), study)
            (study / "index.html").write_text("not copied")
            target = contributed.contribute(study, studies)
            self.assertEqual(target, studies / "contributed/SmolLM2-135M-Instruct")
            self.assertEqual(sorted(one.name for one in target.iterdir()), sorted(
                one.name for one in study.iterdir() if one.name != "index.html"))
            (study / "tried.csv").unlink()
            with self.assertRaisesRegex(DataError, "tried.csv is missing: kvsim study writes it"):
                contributed.contribute(study, studies)
            (study / "texts.csv").write_text("model,text\n")
            with self.assertRaisesRegex(DataError, "texts.csv: found no column category, later_tokens"):
                contributed.check(study)

    def test_categories_are_those_of_the_losses(self):
        for folder in self.STUDIES.iterdir():
            losses, found = (pandas.read_csv(folder / name, dtype={"budget": str})
                             for name in ("losses.csv", "categories.csv"))
            made = boards.by_category(losses, boards.reference_of(losses))
            pandas.testing.assert_series_equal(found.relative, made.relative, rtol=1e-4)


class ShapesTest(unittest.TestCase):
    """Two texts, on which every policy of a shape has losses of its own."""

    LOSSES = {shapes.PUBLISHED: (0.4, 0.1), shapes.RESHAPED: (0.4, 0.1), shapes.ONCE: (0.2, 0.1),
              shapes.TWICE: (0.1, 0.025), shapes.HINDSIGHT: (0.04, 0.01)}

    def studies(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        studies = Path(folder.name)
        (studies / "losses").mkdir()
        with (studies / "losses/shapes.csv").open("w", newline="") as file:
            csv.writer(file).writerows([shapes.HEADER] + [
                ["a", seed, shape, record, budget, loss * (1 + (at == 1))]   # the second is worse
                for shape, listed in shapes.SHAPES.items() for at, (record, what) in
                enumerate(listed) for seed, loss in enumerate(self.LOSSES[what])
                for budget in shapes.BUDGETS])
        return studies

    def test_losses_are_relative_to_the_published_score_that_loses_least(self):
        for shape, listed in shapes.SHAPES.items():
            header, rows = shapes.table(self.studies(), shape)
            self.assertEqual(header, ["policy", "0.1", "0.2", "0.35", "0.5"])
            self.assertEqual([row[0].split("`")[1] for row in rows], [one for one, _ in listed])
            self.assertEqual(rows[0][1], "1 (0.20 nats)")   # of 0.4 and 0.1
            self.assertTrue(rows[1][1].startswith("2.00 [2.00"), rows[1])
            kinds = dict(zip([what for _, what in listed], rows))
            self.assertTrue(kinds[shapes.ONCE][1].startswith("0.71 ["))   # 1/2 and 1
            self.assertTrue(kinds[shapes.TWICE][1].startswith("0.25 [0.25"))

    def test_what_a_shape_costs_is_told_of_the_same_kind_of_policy(self):
        rows = shapes.cost(self.studies())[1]
        self.assertEqual([row[1] for row in rows[:2]], [shapes.TWICE, shapes.HINDSIGHT])
        self.assertTrue(all(row[2].startswith("1.00 [1.00") for row in rows), rows)

    def test_presets_of_the_table_are_presets_of_the_program(self):
        root = Path(__file__).resolve().parents[2]
        known = (root / "docs/presets.md").read_text(encoding="utf-8")
        for _, record in shapes.records():
            self.assertIn(f"| `{record.split(',')[0]}` |", known)


class InstructionsTest(unittest.TestCase):
    """Two texts, one policy of the table, one budget at which its constraint wrecks the cache."""

    BASE, FAIR = "snapkv,rounding=kvpress,window=64", "snapkv,rounding=kvpress,window=64,constrain=fair"

    def table(self, rows):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name, "instructions.csv")
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["order", "text", "policy", "budget", *instructions.MEASURES],
                                        *(["defense", *row] for row in rows),
                                        ["directive", "9", self.BASE, 0.3, *[9] * 7]])
        return instructions.Table(path)

    def test_the_gain_is_half_of_both_losses_and_damage_stands_beside_it(self):
        table = self.table([
            ["0", "random", 0.3, 0.9, 0.9, 0.20, 2, 2], ["1", "random", 0.3, 0.9, 0.9, 0.30, 2, 3],
            ["0", self.BASE, 0.3, 0.4, 0.8, 0.05, 1, 1], ["1", self.BASE, 0.3, 0.6, 0.6, 0.1, 1, ""],
            ["0", self.FAIR, 0.3, 0.5, 0.3, 0.25, 3, 4],
            ["1", self.FAIR, 0.3, 0.6, 0.4, 0.19, 3, ""]])
        self.assertEqual(table.gain(self.FAIR, self.BASE, 0.3).round(6).tolist(), [0.2, 0.1])
        self.assertEqual(table.wrecked(self.FAIR, self.BASE, 0.3).tolist(), [True, False])
        header, rows = instructions.at_budget(table, 0.3)
        found = {row[0]: dict(zip(header, row)) for row in rows}
        fair = found[f"`{instructions.short(self.FAIR)}` ×"]   # of half of the texts
        self.assertEqual((fair["gain"], fair["texts wrecked"]), ("+0.150 [−0.485, +0.785]", "1 of 2"))
        self.assertEqual(fair["stream error"], "0.220 [−0.161, 0.601]")
        self.assertEqual(fair["loss, leak"], "4.00 (1)")   # random has it of both; one text has no interval
        self.assertNotIn("`tova`", found)   # nobody replayed it

    def test_changes_are_paired_by_text_and_those_of_wrecked_caches_left_out(self):
        rows = [[text, policy, budget, 0.5, 0.5, error, *kl]
                for text, both in (("0", ((1, 2), (1.5, 1))), ("1", ((2, 2), (2.5, 0))))
                for budget, worse in ((0.3, 1), (0.5, 9))
                for policy, kl, error in (("random", (3, 3), 0.3), (self.BASE, both[0], 0.1),
                                          (self.FAIR, both[1], 0.1 * worse))]
        rows += [["0", policy, 0.7, 0.5, 0.5, 0.1, kl, ""]   # of one text nothing is told
                 for policy, kl in (("random", 3), (self.BASE, 1), (self.FAIR, 1.25))]
        table = self.table(rows)
        for measure, change in (("kl_directive", [0.5, 0.5]), ("kl_leak", [-1, -2])):
            found = instructions.changed(table, measure, self.BASE, "constrain=fair")
            self.assertEqual({budget: one.tolist() for budget, one in found.items()}, {0.3: change})
            self.assertEqual(instructions.changed(table, measure, self.BASE, "whitelist=defense"), {})
        tables = {length: {order: table for order in instructions.ORDERS} for length in ("500", "8000")}
        figure = instructions.draw_changes(tables, "constrain=fair")
        drawn = [text.get_text() for text in figure.axes[0].texts]
        self.assertEqual(drawn, ["+0.50*", "+0.50*", "−1.50", "−1.50"] * 2)   # in both orders
        self.assertEqual(len(figure.axes[1].texts), 0)   # nobody ran h2o

    def test_lengths_are_summed_up_and_verdicts_are_counted(self):
        def losses(change, error=0.1):
            return [[text, policy, 0.5, 0.5, 0.5, error if policy == self.FAIR else 0.1, *kl]
                    for text, more in (("0", 0), ("1", 0.01)) for policy, kl in (
                        ("random", (3, 3)), (self.BASE, (1, 2)),
                        (self.FAIR, (1 + change + more, 2 - change - more)))]

        near, far = self.table(losses(0.5)), self.table(losses(0.01))
        wrecked = self.table(losses(0.5, error=0.9))
        header, *rows = long_tables.summary({"500": {"defense": near}, "8000": {"defense": far}})
        own = {(row["prompt_tokens"], row["policy"], row["measure"]): row
               for row in (dict(zip(header, one)) for one in rows)}
        gain, error, obey = (own["500", policy, measure] for policy, measure in (
            (self.FAIR, "gain"), (self.FAIR, "stream_error"), (self.BASE, "kl_directive")))
        self.assertEqual([gain["mean"], error["mean"], obey["mean"], obey["texts"]], ["0", "0.1", "1", "2"])
        self.assertEqual(own["500", self.FAIR, "kl_directive, change"]["mean"], "0.505")
        self.assertEqual(own["8000", self.FAIR, "kl_leak, change"]["mean"], "-0.015")
        self.assertEqual(error["wrecked"], "0")
        self.assertEqual({policy for _, policy, _ in own}, {"random", self.BASE, self.FAIR})   # nobody ran others
        tables = {name: {order: one for order in instructions.ORDERS}
                  for name, one in (("500", near), ("2300", far), ("8000", wrecked))}
        header, rows = instructions.counted(tables)
        self.assertEqual(header[-1], "8000: less, more, not told")
        # Below 0.05 nats nothing is told; a wrecked cache does not count.
        self.assertIn(["defense first", "asked to obey", "fair", "0, 1, 0", "0, 0, 1", "0, 0, 0"], rows)
        self.assertIn(["defense first", "asked to leak", "fair", "1, 0, 0", "0, 0, 1", "0, 0, 0"], rows)

    def test_keep_rates_that_differ_are_marked(self):
        rates = {0.3: ((0.1, 0.5), (0.2, 0.6)), 0.5: ((0.1, 0.5), (0.6, 0.4)), 0.7: ((0.7, 0.7),) * 2}
        own = self.table([[text, self.BASE, budget, 0.5, 0.5, 0.1, 1, 1, directive, defense]
                          for budget, texts in rates.items()
                          for text, (defense, directive) in zip("01", texts)])
        header, rows = instructions.keep_rates({"500": {one: own for one in instructions.ORDERS}})
        self.assertEqual(header, ["order", "policy", "500"])
        self.assertEqual(rows[0], ["defense first", f"`{instructions.short(self.BASE)}`",
                                   "0.15 / 0.55*, 0.35 / 0.45, 0.70 / 0.70"])

    def test_a_front_that_wrecks_the_cache_is_told_apart(self):
        grid = [f"{self.BASE},constrain=debias,debias_lambda={one}" for one in instructions.LAMBDAS]
        rows = []
        for budget in instructions.ALL_BUDGETS:
            rows += [["0", "random", budget, 1, 1, 0.1, "", ""],
                     ["0", self.BASE, budget, 0.5, 0.5, 0.02, "", ""]]
            # every λ trades one loss for the other but the last, which λ = 0 dominates
            rows += [["0", policy, budget, 0.5 + 0.01 * i, 0.5 - 0.01 * i * (i < 5),
                      0.2 if i == 1 and budget < 0.25 else 0.02, "", ""]
                     for i, policy in enumerate(grid)]
        _, found = instructions.fronts(self.table(rows))
        optimal = [row[2] for row in found[:6]]
        self.assertEqual(optimal, ["1.00"] * 5 + ["0.00"])
        self.assertEqual([row[-2] for row in found[:3]], ["0.00", "0.22", "0.00"])
        self.assertEqual(found[1][-1], "0.78")   # two of nine budgets do not count

    def test_losses_before_the_question_stand_beside_those_after_it(self):
        with tempfile.TemporaryDirectory() as folder:
            studies = Path(folder)
            for name, factor, own in (("reproduction/agnostic.csv", 2, ()),
                                      ("losses/losses.csv", 3, ("prompt_tokens",))):
                (studies / name).parent.mkdir()
                rows = [[*text, policy, budget, (factor if k else 1) * nats, *(704 for _ in own)]
                        for text, nats in ((("summary", 0), 0.5), (("code", 1), 2))
                        for k, policy in enumerate(agnostic.POLICIES) for budget in agnostic.BUDGETS]
                with (studies / name).open("w", newline="") as file:
                    csv.writer(file).writerows([[*agnostic.HEADER, *own], *rows])
            header, rows = agnostic.by_text(studies)
            means = agnostic.over_texts(studies)[1]
            against = agnostic.against(studies)[1]
        self.assertEqual(header[:3], ["text", "compressed", "`snapkv`, nats"])
        self.assertEqual([row[:2] for row in rows], [[text, form] for text in ("summary", "code 1")
                                                     for form in ("before", "after")])
        self.assertEqual(rows[0][2:4], [", ".join([one] * 4) for one in ("0.50", "2.00")])
        self.assertEqual(rows[3][2:4], [", ".join([one] * 4) for one in ("2.00", "3.00")])
        self.assertEqual(means[0], ["`snapkv`, nats", "before"] + ["1.00 [0.00, 6682.65]"] * 4)
        self.assertEqual(means[3], ["`criticalkv`", "after"] + ["3.00 [3.00, 3.00]"] * 4)
        self.assertEqual(against[0], ["`defensivekv:code` / `snapkv`"] + ["2.00 [2.00, 2.00]"] * 4)
        self.assertEqual(against[1][1:], ["1.00 [1.00, 1.00]"] * 4)   # of CriticalKV


class PagesTest(unittest.TestCase):
    """The pages as they stand in the repository."""

    def test_every_table_is_what_the_script_makes_of_the_csv_files(self):
        studies = pages.ROOT / "studies"
        study = runs.of_claims(*runs.tables(studies))
        listed = pages.with_tables(pages.ROOT)
        self.assertIn(pages.ROOT / "studies/claims.md", listed)
        for path in listed:
            text = path.read_text(encoding="utf-8")
            self.assertTrue(pages.filled(text, study, studies) == text,
                            f"{path} is old: studies/make.sh pages")
        with (studies / "losses/claims.csv").open(newline="", encoding="utf-8") as file:
            held = list(csv.reader(file))
        self.assertTrue(held == [[str(one) for one in row] for row in claims.every(study)],
                        "studies/losses/claims.csv is old: studies/make.sh pages")
        for name, make in pages.LONG.items():
            with (studies / name).open(newline="", encoding="utf-8") as file:
                self.assertTrue(list(csv.reader(file)) == make(study, studies),
                                f"studies/{name} is old: studies/make.sh pages")

    def test_a_page_with_an_unknown_table_is_refused(self):
        with self.assertRaises(SystemExit):
            pages.filled("<!-- table: nobody -->\n<!-- end -->", None, pages.ROOT / "studies")


if __name__ == "__main__":
    unittest.main()
