"""kvsim: what each later token would have lost if the KV cache had been compressed this way.

    kvtrace    captures what a model puts into its attention layers (data/kvtrace in a clone)
    plots      the figures (plots/ in a clone)
"""
