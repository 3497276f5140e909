"""Where attention goes when entries are merged, over the later steps (KeepKV 3.1).

Positive sag: merged slots have less attention than their members had in the full cache. Records that
move values only (`cam`, `value-fold`) have no merged slots, so no sag by definition; what they lose
is the attention on the entries they drop."""

from .. import load, style
from .retained_importance import MEDIAN, thin_and_thick

TITLE = "attention sag of merged slots over steps, what moved in all, and what was dropped"
PANELS = {"attention_sag": "attention sag (fraction of attention)",
          "dropped_attention": "attention on dropped entries (fraction)",
          "attention_shift": "attention shift (fraction of attention)",
          "log_mass_defect": "log-mass defect (nats)"}
NEEDS = tuple(PANELS)
LACKING = "no attention_sag; no policy of the run merges"


def find(results, options):
    """Records that do anything but drop the entries they evict."""
    return [one for one, keys in load.parameters(results).items() if keys.get("merge", "drop") != "drop"]


def legend(results, budget, policy):
    defect = results.variable("log_mass_defect", "policy", "budget", "layer", "step")
    merged = defect.sel(policy=policy, budget=budget).notnull().any()
    return style.key(policy if merged else f"{policy} (no merged slot: sag is 0)", style.policy_style(results, policy))


def draw(results, options, policies):
    budget = results.nearest_budget(options.budget)
    fig, axes = style.frame(
        f"Attention of merged slots at budget {results.budget_text(budget)}",
        f"{results.subtitle}\nmean over layers; thin: every step; thick: running median of "
        f"{MEDIAN} steps", 2, 2, 1.9, [legend(results, budget, policy) for policy in policies],
        ("step (position of the query, tokens)", ""), sharex=True)
    for ax, (name, label) in zip(axes.flat, PANELS.items()):
        values = results.variable(name, "policy", "budget", "layer", "step").sel(budget=budget)
        ax.axhline(0, **style.DOTTED, zorder=0)
        thin_and_thick(ax, results, policies, values.mean("layer"))
        ax.set_title(label)
    return fig
