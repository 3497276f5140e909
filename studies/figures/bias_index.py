"""Bias index of each span and the spread over spans by budget, all policies.

Mean over layers. Above 0 a span is kept more than the prompt as a whole, below 0 less."""

from .. import load, style

TITLE = "bias index per span and spread over spans by budget"
NEEDS = ("span", "bias_index", "bias_spread")
LACKING = "no labelled spans"


def draw(results, options):
    bias = results.variable("bias_index", "policy", "budget", "span", "layer").mean("layer")
    spread = results.variable("bias_spread", "policy", "budget", "layer").mean("layer")
    panels = {f"bias index of {span}": bias.sel(span=span) for span in results.spans}
    fig, (*of_spans, last) = style.budget_panels(
        results, load.competitors(results.policies), "Eviction bias, mean over layers",
        "\nbias index: keep rate of the span − share of all entries kept; 0 is unbiased",
        panels | {"spread: largest − smallest keep rate": spread}, 4, 2.0 if len(panels) < 4 else 1.6,
        "fraction of the span")
    limit = max(0.05, 1.05 * float(abs(bias).fillna(0).max()))
    for ax in of_spans:
        ax.axhline(0, **style.DOTTED)
        ax.set_ylim(-limit, limit)
    last.set_ylim(bottom=-0.02)
    return fig
