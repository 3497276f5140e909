"""Chooses a policy for a model from a text of yours: captures it, replays presets, runs no compressed cache."""

#: What is chosen among: the measured presets that nothing else here replaces. The study of the rule
#: (studies/choose.md) holds for this list alone.
PRESETS = ("streaming", "h2o", "snapkv", "layer-defensivekv:code", "criticalkv:ada", "kvzip", "kvgrad",
           "rehearsal:stream", "rehearsal:reread")
#: The measure of the trace that decides: the least.
MEASURE = "stream_error"
