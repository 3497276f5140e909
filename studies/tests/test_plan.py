"""Tests of what the study of model losses runs; see test_plots.py."""

import unittest

from findings import plan
from kvsim.studies import command


class PlanTest(unittest.TestCase):
    """The groups of policies."""

    def test_a_preset_that_no_group_names_is_run_by_the_group_of_those(self):
        program = ["full", "snapkv", "newer", "duo", "newer:code", "keepkv", "oracle-snapkv"]
        self.assertEqual(plan.groups_of("short", program)["added"], ("newer", "newer:code"))
        self.assertNotIn("added", plan.groups_of("short", ["snapkv"]))
        self.assertNotIn("added", plan.groups_of("fresh", program))

    def test_what_the_groups_name_is_run_once_and_not_left_out(self):
        named = [policy for policies in plan.GROUPS.values() for policy in policies]
        self.assertEqual(len(named), len(set(named)))
        self.assertFalse(set(named) & set(plan.LEFT_OUT))
        self.assertEqual(plan.groups_of("long", [])["presets"], plan.GROUPS["presets"])

    def test_every_study_has_one_length_and_texts_of_its_own_or_all_of_others(self):
        groups = {frozenset(study.texts) for study in plan.STUDIES.values()}
        own = [group for group in groups if not any(other < group for other in groups)]
        self.assertEqual(sum(map(len, own)), len(frozenset.union(*own)))
        self.assertEqual(plan.study_of(plan.LONG[0]), "long")
        self.assertEqual(plan.studies_of(plan.LONG[0]), ["long", "scarce", "long-floor"])
        for name, study in plan.STUDIES.items():
            self.assertEqual(len({text.prompt_tokens for text in study.texts}), 1, name)
            self.assertEqual(set(study.texts), frozenset.union(
                *(group for group in own if group & set(study.texts))), name)

    def test_the_command_line_of_a_group_is_one_that_kvsim_study_reads(self):
        for name in plan.STUDIES:
            for words in plan.commands(name, ["newer"]):
                settings = command.settled(command.parser().parse_args(words))
                self.assertEqual(settings.budgets, [str(b) for b in plan.STUDIES[name].budgets])
                self.assertTrue(settings.policies)


if __name__ == "__main__":
    unittest.main()
