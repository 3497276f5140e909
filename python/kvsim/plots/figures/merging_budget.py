"""Output error against the budget where the same selection drops or merges what it evicts."""

from .. import load, style

TITLE = "output error against the budget: eviction and merging of the same selection"
MERGE_KEYS = ("merge", "merge_threshold", "cam_targets", "votes", "score_estimate",
              "estimate_decay", "estimate_window")
MEASURES = (("output_error_mean", "mean over steps and layers", "mean"),
            ("output_error_max", "worst step and layer", "max"))


def pages(results, options):
    found = selections(results)
    if not found or not results.has(*(name for name, _, _ in MEASURES)):
        raise load.NotMeasured(f"{results.path}: no selection with merge=drop and another merge")
    return [("merging_budget", lambda: draw(results, found))]


def selections(results):
    """[[records]]: those that differ in how they merge only, eviction first."""
    known = load.parameters(results)
    ordered = []
    # merge=kvmerger chooses for itself; every other kind works on what is selected.
    for records in load.alike(results, lambda key: key in MERGE_KEYS):
        records.sort(key=lambda record: known[record].get("merge", "drop") != "drop")
        if len(records) > 1 and known[records[0]].get("merge", "drop") == "drop":
            ordered.append(records)
    return ordered[:4]


def draw(results, groups):
    known = load.parameters(results)
    merges = list(dict.fromkeys(known[record]["merge"] for records in groups for record in records))
    fig, axes = style.frame(
        "Output error where the same selection drops or merges",
        f"{results.subtitle}\neach column is one selection, each line what becomes of the entries "
        "that lose their place", len(MEASURES), len(groups), 1.9,
        [style.key("dropped" if merge == "drop" else merge, style.line_style(k))
         for k, merge in enumerate(merges)],
        (style.budget_label(results), "output error (relative)"), sharex=True, sharey="row")
    for row, (name, what, over_layers) in zip(axes, MEASURES):
        values = results.variable(name, "policy", "budget", "layer").sortby("budget")
        values = getattr(values, over_layers)("layer")
        for ax, records in zip(row, groups):
            for record in records:
                ax.plot(values.budget, values.sel(policy=record),
                        **style.line_style(merges.index(known[record]["merge"])))
            if values.isnull().all():
                style.note_undefined(ax)
            else:
                ax.set_yscale("log")
                style.log_ticks(ax.yaxis, every=(1, 2, 5))
            style.budget_axis(ax, results)
            if ax in axes[0]:
                ax.set_title(style.wrapped(records[0]))
        row[0].set_ylabel(what)
    return fig
