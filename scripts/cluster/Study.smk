# A study in shards: every shard is a job that takes some of the texts and tasks, then all are joined.
# scripts/cluster/study.sh calls it; README.md beside it has examples.
#
#   config: study="OPTIONS" out=DIR shards=N [threads=2] [mem_mb=8000] [minutes=240]
#           [kvsim=build/kvsim]
#
# A shard that is killed or times out is tried again and goes on: kvsim study runs nothing twice.
OUT, SHARDS = config["out"], int(config["shards"])
KVSIM = config.get("kvsim", "build/kvsim")
if SHARDS < 2:
    raise WorkflowError("shards: at least 2; for one share run kvsim study itself")


localrules: joined


rule joined:
    input:
        expand(f"{OUT}/shards/{{shard}}/index.html", shard=range(1, SHARDS + 1)),
    output:
        f"{OUT}/index.html",
    shell:
        "{KVSIM} study merge {OUT:q}/shards/*/ -o {OUT:q}"


rule shard:
    output:
        f"{OUT}/shards/{{shard}}/index.html",
    wildcard_constraints:
        shard=r"\d+",
    threads: int(config.get("threads", 2))
    resources:
        mem_mb=int(config.get("mem_mb", 8000)),
        runtime=int(config.get("minutes", 240)),
    params:
        study=config["study"],
    shell:
        "{KVSIM} study {params.study} --shard {wildcards.shard}/{SHARDS} --threads {threads} --quiet"
        " -o {OUT:q}/shards/{wildcards.shard}"
