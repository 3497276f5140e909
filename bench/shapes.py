"""How the loops of the CPU backend are best cut on this machine: sim/backend/cpu/shapes.hpp.

One member of the shapes is changed at a time; then the best of each together. Processor time of one
thread, which on a busy machine, too, says which is faster; what is no better by more than NOISE is
left as it is."""
import os
import subprocess

STEPS, GROUP = 144, 4
ALL = ["v4-bf16", "v4", "v3", "v2"]   # instruction sets, widest first
NOISE = 0.03
TOLERANCE = 5e-6    # of bench/main.cpp


def runs_here(options, isa):
    return subprocess.run([options.bench, "--n", "16", "--steps", "1"], stdin=subprocess.DEVNULL,
                          env=os.environ | {"KVSIM_ISA": isa}, capture_output=True).returncode == 0


def candidates(facts, form):
    """The default, and every change of one member that matters to the form: name -> member."""
    found = {"default": None}
    for fact, text in facts.items():
        if not fact.startswith("shape."):
            continue
        forms, *values = text.split()
        if form in forms.split(","):
            member = fact.removeprefix("shape.")
            found |= {f"{member}={value}": member for value in values}
    return found


def measure(options, program, names, alternate, form):
    """Seconds of a form under each of the shapes, in turns; wrong ones are not timed."""
    def ask(name):
        program.tell("shapes " + name)
        return program.ask(form)

    for name in names:
        program.tell("shapes " + name)
        program.tell("error " + form)
        error = float(program.process.stdout.readline())
        if not error < TOLERANCE:
            raise SystemExit(f"{name}: results of {form} differ from float64 by {error}")
    return alternate(options.rounds, {name: lambda name=name: ask(name) for name in names})


def best_of(members, times, paired):
    """Of each member the value that is faster than the default by more than noise, joined."""
    best = {}
    for name, of in members.items():
        ratio = paired(times[name], times["default"])
        if of is not None and ratio < min(1 - NOISE, best.get(of, (1,))[0]):
            best[of] = (ratio, name)
    return ",".join(name for _, name in best.values())


def shapes(options, problems, program_of, alternate, spread, paired):
    """`program_of`, `alternate`, `spread`, `paired`: Program and functions of run.py."""
    isas = [os.environ["KVSIM_ISA"]] if "KVSIM_ISA" in os.environ else ALL
    options.processor_time, options.threads = True, 1
    for isa in filter(lambda isa: runs_here(options, isa), isas):
        columns = {}
        for n, d in problems:
            program = program_of(options, [options.bench, "--n", str(n), "--d", str(d), "--steps",
                                           str(STEPS), "--group", str(GROUP)], isa)
            program.tell("threads 1")
            for form in ("fused", "sums"):
                members = candidates(program.facts, form)
                times = measure(options, program, members, alternate, form)
                best = best_of(members, times, paired)
                if "," in best:
                    joined = measure(options, program, ["default", best], alternate, form)
                    times[best], times["default of best"] = joined[best], joined["default"]
                columns[f"{form}, {n} x {d}"] = (times, best)
            device = program.facts["device"].split(";")[0]
            program.close()
        show(device, options.rounds, columns, spread, paired)


def show(device, rounds, columns, spread, paired):
    print(f"\n### Shapes: {device}\n\nProcessor time of one thread, as a share of that with the default "
          f"shapes; median of {rounds} rounds.\n")
    print("| shape | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    first = {name: None for times, best in columns.values() for name in times if "," not in name}
    for name in first:
        if name == "default of best":
            continue
        cells = [spread(times[name]) + " s" if name == "default" else
                 f"{paired(times[name], times['default']):.3f}" if name in times else "-"
                 for times, _ in columns.values()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    cells = [f"{best}: {paired(times[best], times.get('default of best', times['default'])):.3f}"
             if best else "default" for times, best in columns.values()]
    print("| best together | " + " | ".join(cells) + " |", flush=True)
