"""The measures that policies and settings are judged by, and which of them a figure shows.

Stream error predicts best what a model loses (studies/prediction.md); retained importance is what the
papers judge by.
"""

NAMES = ("stream_error", "retained_importance", "output_error", "residual_error")
# Its summary over steps in a results file, which is there when the measure is.
SUMMARIES = {"stream_error": "stream_error_rms",
             "retained_importance": "retained_importance_mean",
             "output_error": "output_error_mean", "residual_error": "residual_error_max"}
LEADING = ("stream_error", "output_error")  # the second where a trace has no residual norms
BESIDE = "retained_importance"


def of_files(files, options):
    """The measures to draw: those of `--metric`, Missing when a file lacks one, or the usual ones that all
    files have."""
    asked = getattr(options, "metric", None)
    for results in files:
        for name in asked or ():
            if not results.has(SUMMARIES[name]):
                from . import load   # to name the measures takes no package
                raise load.Missing(f"{results.path}: no variable {SUMMARIES[name]}")
    if asked:
        return list(asked)
    there = [name for name in NAMES if all(results.has(SUMMARIES[name]) for results in files)]
    return [name for name in LEADING if name in there][:1] + [name for name in (BESIDE,) if name in there]


def words(name):
    return name.replace("_", " ")


def title(names):
    """E.g. "Stream error and retained importance"."""
    text = " and ".join(map(words, names)) if len(names) < 3 else \
        ", ".join(map(words, names[:-1])) + " and " + words(names[-1])
    return text[:1].upper() + text[1:]


def layers_note(files, names):
    """Says so when stream error is drawn and is not of all layers of the model, else nothing."""
    counts = [results.stream_layers for results in files] if "stream_error" in names else []
    if len(set(counts)) < 2:
        return "".join(f"; stream error: of {count}" for count in set(counts) - {""})
    from . import load

    told = {}   # of several files: which
    for name, count in zip(load.names(files), counts):
        told.setdefault(count or "all layers", []).append(name)
    return "; stream error: " + ", ".join(f"of {count} ({', '.join(of)})" for count, of in told.items())
