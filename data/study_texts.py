"""The texts of the prediction study, and which of them are set aside.

The rule, written down before any of them was looked at: the kinds on which a first measurement had
been made (a report to summarise, labelled examples, code, instructions) are for searching a
predictor; kinds never measured before are set aside, and a predictor is reported on them alone.
"""

SEARCHED = ("summary", "fewshot", "code", "order_defense_wish")
SET_ASIDE = ("questions", "switch", "needles4", "counting")

PROMPT_TOKENS = 704   # at most
STEPS = 128           # at most
SEED = 0              # of the generated texts
BUDGETS = (0.1, 0.2, 0.35, 0.5, 0.7)
