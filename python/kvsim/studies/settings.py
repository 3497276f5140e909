"""Settings of a study, and the usual ones."""

from dataclasses import dataclass, field

#: The policies of a study that names none: those that matter, and hindsight as a floor.
POLICIES = ("random", "streaming", "h2o", "tova", "snapkv", "expected-attention", "criticalkv:ada",
            "layer-defensivekv:code", "restkv", "kvzip", "kvzip-plus", "rehearsal:recent",
            "rehearsal:reread", "oracle-stream")
BUDGETS = ("0.1", "0.2", "0.35", "0.5")


@dataclass
class Settings:
    """Options of a study. Budgets as they are typed."""

    policies: list[str] = field(default_factory=lambda: list(POLICIES))
    budgets: list[str] = field(default_factory=lambda: list(BUDGETS))
    prompt_tokens: int = 704
    steps: int = 128
    dtype: str = "float16"
    probe: str = "repeat"
    metrics: list[str] = field(default_factory=list)   # of the replay, beside those of every run
    threads: int = 0
    keep_traces: bool = False
    instances: int = 50   # of each task
    task_seed: int = 0

    @property
    def probes(self) -> list[str]:
        """Values that `kvsim capture --probe` gets, one by one."""
        return [one for one in self.probe.split(",") if one]

    def shared(self, model: str) -> dict:
        """Options that all texts of a study share."""
        return {"model": model, "budgets": self.budgets, "prompt_tokens": self.prompt_tokens,
                "steps": self.steps, "probe": self.probe, "dtype": self.dtype}
