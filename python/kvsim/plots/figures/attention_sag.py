"""Where attention goes when entries are merged, over the later steps (KeepKV 3.1).

Positive sag: merged slots have less attention than their members had in the full cache. Records that
move values only (`cam`, `value-fold`) have no merged slots, so no sag by definition; what they lose
is the attention on the entries they drop.
"""

from .. import load, style
from .retained_importance import MEDIAN, running_median

TITLE = "attention sag of merged slots over steps, what moved in all, and what was dropped"
PANELS = (("attention_sag", "attention sag (fraction of attention)"),
          ("dropped_attention", "attention on dropped entries (fraction)"),
          ("attention_shift", "attention shift (fraction of attention)"),
          ("log_mass_defect", "log-mass defect (nats)"))


def pages(results, options):
    if not results.has(*(name for name, _ in PANELS)):
        raise load.NotMeasured(f"{results.path}: no attention_sag; no policy of the run merges")
    budget = results.nearest_budget(options.budget)
    merging = merging_policies(results)
    if not merging:
        raise load.NotMeasured(f"{results.path}: no policy of those chosen merges")
    return style.pages("attention_sag", [merging],
                       lambda policies, note: draw(results, budget, policies, note))


def merging_policies(results):
    """Records that do anything but drop the entries they evict."""
    known = load.parameters(results)
    return [policy for policy in results.policies
            if known.get(policy, {}).get("merge", "drop") != "drop"]


def legend(results, budget, policy):
    defect = results.variable("log_mass_defect", "policy", "budget", "layer", "step")
    merged = defect.sel(policy=policy, budget=budget).notnull().any()
    return style.key(policy if merged else f"{policy} (no merged slot: sag is 0)",
                     style.policy_style(results, policy))


def draw(results, budget, policies, note):
    fig, axes = style.frame(
        f"Attention of merged slots at budget {results.budget_text(budget)}{note}",
        f"{results.subtitle}\nmean over layers; thin: every step; thick: running median of "
        f"{MEDIAN} steps", 2, 2, 1.9, [legend(results, budget, policy) for policy in policies],
        ("step (position of the query, tokens)", ""), sharex=True)
    for ax, (name, label) in zip(axes.flat, PANELS):
        values = results.variable(name, "policy", "budget", "layer", "step").sel(budget=budget)
        ax.axhline(0, color="black", linewidth=0.7, linestyle=":", zorder=0)
        for number, policy in enumerate(policies):
            line = values.sel(policy=policy).mean("layer")
            look = {"zorder": 3, **style.policy_style(results, policy)}
            every = max(1, results.steps.size // 4)
            ax.plot(results.steps, line, color=look["color"], linewidth=0.4, alpha=0.35, zorder=2)
            ax.plot(results.steps, running_median(line),
                    markevery=(every * number // len(policies), every), **look)
        ax.set_title(label)
        ax.margins(x=0.02)
    return fig
