"""Does the replay predict what the model loses? studies/make.sh prediction DIR -o figs/

DIR holds the runs that studies/losses.sh makes. Prints Spearman's correlation over policies of
every summary measure with the mean KL divergence, and draws the figures of studies/prediction.md.
"""

import sys
from pathlib import Path

import numpy as np
import xarray

from kvsim.plots import style
from kvsim.plots.statistics import over_traces, spearman
from . import output, plan, runs

RESAMPLES = 500
BLOCK = 8             # steps
HALVES = f"the loss itself, every other {BLOCK} steps, with that at the others"
POLICIES = plan.EVICTION + plan.MERGING + plan.STEPWISE
# Losses: retained shares are turned around, so that more is always worse.
MEASURES = {
    "retained_importance": lambda values: 1 - values,
    "retained_attention": lambda values: 1 - values,
    "importance_cosine": lambda values: 1 - values,
    "importance_pearson": lambda values: 1 - values,
    "dropped_attention": lambda values: values,
    "output_error": lambda values: values,
    "output_error_absolute": lambda values: values,
    "residual_error": lambda values: values,
}
OVER_STEPS = {
    "mean": lambda values: values.mean(-1),
    "worst": lambda values: values.max(-1),
    "p99": lambda values: np.percentile(values, 99, axis=-1),
}
OVER_LAYERS = {
    "mean": lambda values: values.mean(-1),
    "worst": lambda values: values.max(-1),
    "first third": lambda values: np.array_split(values, 3, -1)[0].mean(-1),
    "middle third": lambda values: np.array_split(values, 3, -1)[1].mean(-1),
    "last third": lambda values: np.array_split(values, 3, -1)[2].mean(-1),
}
# Variables read of results of the replay and of the closed loop.
NEEDED = ([*MEASURES, "outlier_count", "stream_error", "stream_error_rms"],
          ["kl_divergence", "top1_agreement_mean"])
BEST = "stream_error, rms over steps"
SHOWN = (BEST, "residual_error, worst over steps, mean over layers",
         "output_error, worst over steps, mean over layers",
         "retained_importance, worst over steps, mean over layers",
         "retained_importance, mean over steps, mean over layers")


class Text:
    """One text: measures [policies, budgets] by name, and what the model lost."""

    def __init__(self, folder, text, policies):
        parts = [[xarray.open_dataset(path, engine="h5netcdf") for path in (one.results, one.loop)]
                 for one in runs.parts(folder, text) if {*policies}.intersection(one.policies())]
        known = [[str(one) for one in loop.policy.values if str(one) in policies]
                 for _, loop in parts]
        replay, loop = (xarray.concat([part[i][NEEDED[i]].sel(policy=own)
                                       for part, own in zip(parts, known)], "policy")
                        for i in range(2))
        self.kind = f"{text.kind} {text.prompt_tokens}"
        self.policies = [one for own in known for one in own]
        self.budgets = [float(one) for one in loop.budget.values]
        self.kl = loop.kl_divergence.values
        self.mean_kl = self.kl.mean(-1)
        self.agreement = loop.top1_agreement_mean.values
        self.layers = replay.layer.values
        self.residual = replay.residual_error.values
        self.absolute = replay.output_error_absolute.values
        self.stream = replay.stream_error.values
        self.measures = {BEST: replay.stream_error_rms.values,
                         "outlier_count, sum over layers": replay.outlier_count.values.sum(-1)}
        for name, loss in MEASURES.items():
            values = loss(replay[name].values)
            for step, fold in OVER_STEPS.items():
                folded = fold(values)
                for layer, over in OVER_LAYERS.items():
                    link = "over" if layer in ("mean", "worst") else "of"
                    how = f"{layer} {link} layers"
                    self.measures[f"{name}, {step} over steps, {how}"] = over(folded)

    def correlations(self, name, chosen=slice(None)):
        """Spearman over policies at each budget."""
        values = self.measures[name]
        return [spearman(values[chosen, b], self.mean_kl[chosen, b])
                for b in range(len(self.budgets))]

    def halves(self, chosen=slice(None)):
        """Spearman over policies of the loss at half of the steps with that at the other half, at
        each budget: blocks of BLOCK steps in turn."""
        first = np.arange(self.kl.shape[-1]) // BLOCK % 2 == 0
        return [spearman(self.kl[chosen, b][:, first].mean(-1),
                         self.kl[chosen, b][:, ~first].mean(-1)) for b in range(len(self.budgets))]


def read(folder, kinds, policies):
    """The texts of these kinds that have been run; says which have not."""
    texts = []
    for text in plan.TEXTS:
        if text.kind not in kinds:
            continue
        if runs.parts(folder, text):
            texts.append(Text(folder, text, policies))
        else:
            print(f"{text.stem}: not run, left out")
    if not texts:
        sys.exit(f"{folder}: none of {', '.join(kinds)} has been run")
    return texts


def interval(texts, correlations):
    """Mean over texts of `correlations(text, policies)` per budget, and its 95 % interval over
    resampled policies and texts."""
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        some = [texts[i] for i in generator.integers(len(texts), size=len(texts))]
        drawn.append(np.mean([
            correlations(text, generator.integers(len(text.policies), size=len(text.policies)))
            for text in some], axis=0))
    low, high = np.nanpercentile(drawn, (2.5, 97.5), axis=0)
    return np.mean([correlations(text, slice(None)) for text in texts], axis=0), low, high


def intervals(texts):
    """The measures shown, and what one half of the loss says of the other: (name, interval)."""
    for name in SHOWN:
        yield name, interval(texts, lambda text, chosen, name=name: text.correlations(name, chosen))
    yield HALVES, interval(texts, Text.halves)


def table(texts, title, count=12):
    """Prints the best measures and the ones of the papers, by mean over texts and budgets."""
    print(f"\n{title}: {', '.join(f'{t.kind} ({len(t.policies)} policies)' for t in texts)}")
    names = {name: np.array([text.correlations(name) for text in texts])
             for name in texts[0].measures}
    order = sorted(names, key=lambda name: -np.nan_to_num(names[name].mean(), nan=-2))
    budgets = " ".join(f"{b:>6g}" for b in texts[0].budgets)
    print(f"{'':58} {'mean':>6} {'least':>6} {budgets}   all budgets")
    for place, name in enumerate(order, start=1):
        if place > count and name not in SHOWN:
            continue
        found = names[name]
        pooled = np.mean([spearman(t.measures[name].ravel(), t.mean_kl.ravel()) for t in texts])
        print(f"{place:3} {name:54} {found.mean():6.2f} {found.min():6.2f} "
              + " ".join(f"{value:6.2f}" for value in found.mean(0)) + f"   {pooled:6.2f}")
    return order


def print_intervals(rows):
    print("\n95 % intervals (policies and texts resampled)")
    for name, found in rows:
        print(f"  {name:58} " + "  ".join(f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in zip(*found)))


def print_places(texts):
    """Which steps and layers carry the loss."""
    print("\nsteps: share of the summed KL at the worst tenth of the steps; Spearman over steps of "
          "stream error and KL (mean over policies), by budget")
    for text in texts:
        tenth = max(1, text.kl.shape[-1] // 10)
        top = np.sort(text.kl, -1)[..., -tenth:].sum(-1) / np.maximum(text.kl.sum(-1), 1e-12)
        along = np.array([[spearman(text.stream[p, b], text.kl[p, b])
                           for b in range(len(text.budgets))] for p in range(len(text.policies))])
        print(f"  {text.kind:22}" + " ".join(f"{v:.2f}" for v in top.mean(0)) + "   "
              + " ".join(f"{v:.2f}" for v in np.nanmean(along, 0)))
    print("\nlayers with the largest share of the summed squared error (mean over texts)")
    share = np.mean([layer_shares(text) for text in texts], axis=0)
    order = np.argsort(-share)[:8]
    print("  " + ", ".join(f"{texts[0].layers[i]}: {share[i]:.2f}" for i in order))


def calibration(searched, set_aside):
    """Nats from the stream error: log KL is fitted as a line in log stream error on the searched
    texts; printed is by what factor it is off on those set aside, at the median and at 90 %."""
    def logs(text):
        kept = (text.measures[BEST] > 0) & (text.mean_kl > 0)
        return np.log(text.measures[BEST][kept]), np.log(text.mean_kl[kept])

    error, loss = (np.concatenate(part) for part in zip(*map(logs, searched)))
    slope, level = np.polyfit(error, loss, 1)
    print(f"\nnats: KL = {np.exp(level):.3g} * stream_error_rms ^ {slope:.3g}, fitted on the searched "
          "half; factor by which it is off, median and 90th percentile over policies and budgets")
    for name, texts in (("searched", searched), ("set aside", set_aside)):
        for text in texts:
            x, y = logs(text)
            off = np.exp(np.abs(level + slope * x - y))
            print(f"  {name:10} {text.kind:24} {np.median(off):.2f}   {np.percentile(off, 90):.2f}")


def layer_shares(text):
    squares = (text.absolute ** 2).mean(-1)
    return (squares / np.maximum(squares.sum(-1, keepdims=True), 1e-30)).mean((0, 1))


HERE = Path(__file__).resolve().parents[1]   # where the tables are
SCATTERED = (0.1, 0.2, 0.5)   # budgets of the figure
FEW_BEST = 11


def draw_scatter(studies):
    """Stream error and mean retained importance against the loss, a column per budget; a dot per policy
    and text, both relative to the text's own geometric mean."""
    study = runs.Study(studies / "losses/losses.csv")
    texts = [text for text in plan.TEXTS if text.kind in plan.SET_ASIDE]
    policies = [one for one in POLICIES   # that ran on all of them
                if all(np.isfinite(study.value("kl", text, one, SCATTERED[0])) for text in texts)]
    measures = (("stream_error", "stream error, relative to the mean"),
                ("retained_mean", "1 − retained importance, relative"))
    fig, axes = style.frame(
        "What the replay says and what the model lost",
        f"{len(texts)} texts set aside, a dot per policy and text; both axes relative to the geometric mean of "
        "the text. Stream error: rms over steps; retained importance: mean over steps and layers. Above each panel Spearman's correlation over policies, mean over texts. Lower is "
        f"better. {plan.MODEL}.", len(measures), len(SCATTERED), 1.9, (),
        ("", "loss relative to the text's mean"), sharey=True, sharex="row")
    for across, (column, label) in zip(axes, measures):
        for ax, budget in zip(across, SCATTERED):
            found = []
            for text in texts:
                pairs = np.array([[study.value(one, text, policy, budget) for one in (column, "kl")]
                                  for policy in policies])
                if column == "retained_mean":
                    pairs[:, 0] = 1 - pairs[:, 0]
                pairs = pairs[np.isfinite(pairs).all(axis=1)]
                found.append(spearman(*pairs.T))
                ax.plot(*np.exp(np.log(pairs) - np.log(pairs).mean(axis=0)).T, color="0.55", linestyle="", marker=".", markersize=2.5)
            ax.set(xscale="log", yscale="log", title=f"budget {budget:g}: {np.mean(found):.2f}")
            ax.set_xlabel(label)
            style.log_ticks(ax.yaxis, 6)
            style.log_ticks(ax.xaxis, every=(1, 2, 5))
    return fig


def among_best(studies):
    """Header and rows: Spearman's correlation of stream error and loss over the policies that lose least,
    where a user chooses: mean and interval over documents."""
    study = runs.Study(studies / "losses/fresh.csv", texts=plan.FRESH)
    known = sorted({policy for run in study.runs for policy in run.policies
                    if not policy.startswith("oracle-")})
    cells = []
    for budget in plan.FEW_BUDGETS:
        kl = {policy: np.array([study.value("kl", text, policy, budget) for text in plan.FRESH])
              for policy in known}
        best = sorted((one for one in known if np.isfinite(kl[one]).all()),
                      key=lambda one: np.log(kl[one]).mean())[:FEW_BEST]
        by_document = {}
        for k, text in enumerate(plan.FRESH):
            by_document.setdefault(text.document, []).append(spearman(
                np.array([study.value("stream_error", text, one, budget) for one in best]),
                np.array([kl[one][k] for one in best])))
        mean, (low, high) = over_traces([np.mean(of) for of in by_document.values()])
        cells.append(f"{mean:.2f} [{low:.2f}, {high:.2f}]")
    return (["policies", *(f"{budget:g}" for budget in plan.FEW_BUDGETS)],
            [[f"the {FEW_BEST} that lose least", *cells]])


def draw_measures(budgets, rows):
    """Spearman per budget with intervals, a line per measure."""
    keys = [style.key(name, style.line_style(i)) for i, (name, _) in enumerate(rows)]
    fig, axes = style.frame("Rank correlation with the model's loss, over policies",
                            "7 texts set aside; bars: 95 % intervals (policies and texts "
                            f"resampled); dotted: 0.9. {plan.MODEL}.", 1, 1, 2.6, keys,
                            ("budget (fraction of the prompt kept)", "Spearman's correlation"))
    ax = axes[0, 0]
    for i, (_, (middle, low, high)) in enumerate(rows):
        at = np.array(budgets) + 0.006 * (i - 2)
        look = style.line_style(i)
        ax.plot(at, middle, **look)
        ax.vlines(at, low, high, color=look["color"], linewidth=0.8)
    ax.axhline(0.9, color=style.REFERENCE, linewidth=0.8, linestyle=":")
    ax.set_xticks(budgets)
    return fig


def draw_layers(texts):
    """Share of the summed squared error by layer, a line per text, a panel per length."""
    named = [text.kind.rsplit(" ", 1) for text in texts]
    kinds, lengths = (list(dict.fromkeys(part)) for part in zip(*named))
    looks = {kind: style.line_style(i) for i, kind in enumerate(kinds)}
    fig, axes = style.frame("Layers whose errors weigh most", "All texts: share of the squared "
                            f"output error, mean over policies and budgets. {plan.MODEL}.", len(lengths), 1, 1.6,
                            [style.key(kind, look) for kind, look in looks.items()],
                            ("layer", "share of squared error"), sharex=True, sharey=True)
    for text, (kind, length) in zip(texts, named):
        ax = axes[lengths.index(length), 0]
        ax.plot(text.layers, layer_shares(text), **looks[kind])
        ax.set_title(f"prompts of up to {length} tokens")
    return fig


def main():
    options = output.parser(__doc__, "prediction", "DIR", "FIGS", "?").parse_args()
    output.save(options.out, "prediction_scatter", lambda: draw_scatter(HERE))
    if options.source is None:
        return
    halves = [read(options.source, kinds, POLICIES)
              for kinds in (plan.SEARCHED, plan.SET_ASIDE)]
    table(halves[0], "searched half")
    table(halves[1], "half set aside")
    rows = list(intervals(halves[1]))
    print_intervals(rows)
    print_places(halves[0] + halves[1])
    calibration(*halves)
    hindsight = read(options.source, plan.SET_ASIDE, POLICIES + plan.HINDSIGHT)
    table(hindsight, "half set aside, with hindsight presets", 1)
    for name, draw in (("prediction_measures", lambda: draw_measures(halves[1][0].budgets, rows)),
                       ("prediction_layers", lambda: draw_layers(halves[0] + halves[1]))):
        output.save(options.out, name, draw)


if __name__ == "__main__":
    main()
