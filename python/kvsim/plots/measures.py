"""The measures that policies and settings are judged by, their summaries in a results file, and which
of them a figure shows.

Stream error predicts best what a model loses (studies/prediction.md); retained importance is what the papers judge by.
"""

from typing import NamedTuple

from ..plain import counted

NAMES = ("stream_error", "retained_importance", "output_error", "residual_error")
LEADING = ("stream_error", "output_error")  # the second where a trace has no residual norms
BESIDE = "retained_importance"


class Summary(NamedTuple):
    """One number of a policy at a budget."""

    measure: str
    variable: str
    over_layers: str | None   # None: the variable is of all layers together
    what: str

    @property
    def more_is_better(self):
        return self.measure == BESIDE

    @property
    def unit(self):
        return "fraction" if self.more_is_better else "relative"

    def title(self, layers):
        """On two lines; `layers` are those of the files."""
        of = "" if self.over_layers is None else f", layer {layers[0]}" if len(layers) == 1 else \
            " and layers" if self.over_layers == "mean" else " and layer"
        return f"{words(self.measure)},\n{self.what}{of}"

    def table(self, results):
        """[policy, budget]"""
        if self.over_layers is None:
            return results.variable(self.variable, "policy", "budget")
        values = results.variable(self.variable, "policy", "budget", "layer")
        return getattr(values, self.over_layers)("layer")


# The first of a measure is in a file when the measure is.
SUMMARIES = (
    Summary("stream_error", "stream_error_rms", None, "rms over steps"),
    Summary("retained_importance", "retained_importance_mean", "mean", "mean over steps"),
    Summary("output_error", "output_error_mean", "mean", "mean over steps"),
    Summary("residual_error", "residual_error_max", "max", "worst step"),
    Summary("retained_importance", "retained_importance_min", "min", "worst step"),
    Summary("output_error", "output_error_max", "max", "worst step"),
)


def of_files(files, options):
    """The measures to draw: those of `--metric`, Missing when a file lacks one, or the usual ones that all
    files have."""
    variables = {name: next(one.variable for one in SUMMARIES if one.measure == name) for name in NAMES}
    asked = list(options.metric or ())
    for results in files:
        results.need(*(variables[name] for name in asked))
    there = [name for name in NAMES if all(results.has(variables[name]) for results in files)]
    return asked or [name for name in LEADING if name in there][:1] + [name for name in (BESIDE,) if name in there]


def words(name):
    return name.replace("_", " ")


def title(names):
    """E.g. "Stream error and retained importance"."""
    *first, last = map(words, names)
    text = f"{', '.join(first)} and {last}" if first else last
    return text[:1].upper() + text[1:]


def layers_note(files, names=("stream_error",)):
    """Says so when stream error is drawn and is not of all layers of the model, else nothing."""
    if "stream_error" not in names:
        return ""
    from . import load   # to name the measures takes no package

    told = {}
    for name, results in zip(load.names(files), files):
        told.setdefault(results.stream_layers, []).append(name)
    if len(told) == 1:
        return f"; stream error: of {min(told)}" if min(told) else ""
    return "; stream error: " + ", ".join(   # of several files: which
        f"of {count or 'all layers'} ({', '.join(of)})" for count, of in told.items())


MOST_NAMED = 4   # policies in a note; the rest are counted


def held_note(files, policies, budget=None):
    """Names the policies that hold over a twentieth more or less than a budget gives (at the one nearest to
    `budget`, where it is given): beside the others they look better or worse than they are."""
    from .. import ranking   # to name the measures takes no package
    from . import load

    found = {ranking.HOLDS_MORE: {}, ranking.HOLDS_LESS: {}}
    for results in files:
        why, held = ranking.why_unranked(results.data), ranking.held_of_budget(results.data)
        shown = results.budgets == results.nearest_budget(budget) if budget is not None else ...
        for policy, reasons, factors in zip(results.policies, why, held):
            for reason, factor in zip(reasons[shown], factors[shown]):
                if reason in found and policy in policies and not load.is_full(policy):
                    found[reason].setdefault(policy, []).append(factor)
    notes = []
    for reason, word in ((ranking.HOLDS_MORE, "Above"), (ranking.HOLDS_LESS, "Below")):
        named = [f"{policy} ({' to '.join(dict.fromkeys(f'{end(own):.3g}' for end in (min, max)))} times)"
                 for policy, own in found[reason].items()]
        rest = len(named) - MOST_NAMED
        if named:
            notes.append(f"{word} the budget by over a twentieth: {', '.join(named[:MOST_NAMED])}"
                         + (f" and {counted(rest, 'other')}" if rest > 0 else ""))
    return "".join(f"\n{one}" for one in notes)
