"""Output error against the budget where the same selection drops or merges what it evicts."""

from .. import load, style

TITLE = "output error against the budget: eviction and merging of the same selection"
MERGE_KEYS = ("merge", "merge_threshold", "cam_targets", "votes", "score_estimate",
              "estimate_decay", "estimate_window")
NEEDS = ("output_error_mean", "output_error_max")
LACKING = "no selection with merge=drop and another merge"


def find(results, options):
    """[{record: merge}]: those that differ in how they merge only, eviction first."""
    # merge=kvmerger chooses for itself; every other kind works on what is selected.
    merges = [{record: keys.get("merge", "drop") for record, keys in records.items()}
              for records in load.alike(results, lambda key: key in MERGE_KEYS)]
    return [dict(sorted(one.items(), key=lambda item: item[1] != "drop")) for one in merges
            if len(one) > 1 and "drop" in one.values()][:4]


def draw(results, options, groups):
    merges = list(dict.fromkeys(merge for group in groups for merge in group.values()))
    looks = {merge: style.line_style(k) for k, merge in enumerate(merges)}
    fig, axes = style.frame(
        "Output error where the same selection drops or merges",
        f"{results.subtitle}\neach column is one selection, each line what becomes of the entries "
        "that lose their place", 2, len(groups), 1.9,
        [style.key("dropped" if merge == "drop" else merge, look) for merge, look in looks.items()],
        (style.budget_label(results), "output error (relative)"), sharex=True, sharey="row")
    mean, most = (results.variable(name, "policy", "budget", "layer").sortby("budget") for name in NEEDS)
    for row, values, what in zip(axes, (mean.mean("layer"), most.max("layer")),
                                 ("mean over steps and layers", "worst step and layer")):
        for ax, group in zip(row, groups):
            for record, merge in group.items():
                ax.plot(values.budget, values.sel(policy=record), **looks[merge])
            if values.isnull().all():
                style.note_undefined(ax)
            else:
                ax.set_yscale("log")
                style.log_ticks(ax.yaxis, every=(1, 2, 5))
            style.budget_axis(ax, results)
        row[0].set_ylabel(what)
    for ax, group in zip(axes[0], groups):
        ax.set_title(style.wrapped(next(iter(group))))
    return fig
