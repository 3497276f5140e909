"""Tests of what the study of model losses runs; see test_plots.py."""

import unittest

import test_plots  # noqa: F401  says so, and stops, where modules are missing
from kvsim.plots.study import plan


class PlanTest(unittest.TestCase):
    """The groups of policies."""

    def test_a_preset_that_no_group_names_is_run_by_the_group_of_those(self):
        program = ["full", "snapkv", "newer", "duo", "newer:code", "keepkv", "oracle-snapkv"]
        self.assertEqual(plan.policies_of("added", program), ("newer", "newer:code"))
        self.assertEqual(plan.policies_of("added", ["snapkv"]), ())

    def test_what_the_groups_name_is_run_once_and_not_left_out(self):
        named = [policy for policies, _ in plan.GROUPS.values() for policy in policies]
        self.assertEqual(len(named), len(set(named)))
        self.assertFalse(set(named) & set(plan.LEFT_OUT))
        self.assertEqual(plan.policies_of("presets", []), plan.GROUPS["presets"][0])


if __name__ == "__main__":
    unittest.main()
