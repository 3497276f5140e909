"""The workflows of scripts/cluster on Slurm: a sweep and a study on two nodes, which the test starts on
this machine. Jobs are killed and nodes are lost; the results are those of one run.

Run: tests/group.sh slurm. It makes namespaces for processes, mounts and the network, so that no daemon of
Slurm can be reached from outside or outlive the test. Root must run it.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from test_workflow import KVSIM, Workflow, kvsim

ADDRESS = "10.0.0.1"   # of the loopback interface here: Slurm resolves nothing with 127.0.0.1 alone
PORTS = {"left": 7001, "right": 7002}
CONFIG = """ClusterName=kvsim
SlurmctldHost=localhost({address})
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=5
KillWait=2
GresTypes=gpu
{nodes}
PartitionName=cpu Nodes=ALL Default=YES
"""
SNAKEMAKE = ["--executor", "slurm", "--jobs", "4", "--slurm-status-command", "squeue",
             "--slurm-init-seconds-before-status-checks", "2",
             "--default-resources", "slurm_partition=cpu"]


class Slurm:
    """One controller and the nodes of PORTS, each with processes of its own, that it can lose."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvsim-slurm-"))
        self.daemons = []
        self.nodes = {}

    def begin(self):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo"], check=True)
        nodes = "\n".join(f"NodeName={name} NodeHostname=localhost NodeAddr={ADDRESS} Port={port} "
                          "CPUs=2 CoresPerSocket=2 RealMemory=4000 Gres=gpu:1"
                          for name, port in PORTS.items())
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=self.folder, address=ADDRESS, nodes=nodes))
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        # Where all of Slurm looks for it: jobs do not hand on a variable. In this namespace alone.
        subprocess.run(["mount", "--bind", self.folder, "/etc/slurm"], check=True)
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        for name in ("state", *PORTS):
            (self.folder / name).mkdir()
        self.start("munged", "--foreground", "--force", f"--key-file={key}",
                   *(f"--{name}={self.folder}/munge.{name.split('-')[0]}"
                     for name in ("socket", "pid-file", "log-file", "seed-file")))
        self.wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self.start("slurmctld", "-D", "-c")
        self.nodes = {name: self.start("unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
                                       "slurmd", "-D", "-N", name) for name in PORTS}
        self.wait(lambda: self.ask("sinfo", "-N", "-h", "-o", "%T").split() == ["idle"] * len(PORTS),
                  "two idle nodes")

    def start(self, *command):
        with (self.folder / "said.log").open("a") as log:
            self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self.daemons[-1]

    def ask(self, *command):
        return subprocess.run(command, capture_output=True, text=True).stdout

    def wait(self, reached, what):
        for _ in range(6000):   # ten minutes: others may be at work on the machine
            if reached():
                return
            time.sleep(0.1)
        raise AssertionError(f"Slurm has no {what}:\n" + "".join(
            path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log"))))

    def lose(self, name):
        """All that runs on a node is gone, and Slurm is told."""
        self.nodes[name].kill()
        self.down(name)

    def cut_off(self, name):
        """Slurm cannot reach a node any more, and is told; what runs there goes on."""
        daemon = self.ask("pgrep", "--parent", str(self.nodes[name].pid))
        os.kill(int(daemon), signal.SIGSTOP)
        self.down(name)

    def down(self, name):
        subprocess.run(["scontrol", "update", f"nodename={name}", "state=down", "reason=lost"],
                       check=True)

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()
        subprocess.run(["umount", "-q", "/etc/slurm"])
        shutil.rmtree(self.folder)


def variable(process, name):
    """Of the environment of a process; None where there is none."""
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    except OSError:
        return None
    return dict(word.partition("=")[::2] for word in words).get(name)


class SlurmTest(Workflow):
    def setUp(self):
        super().setUp()
        self.slurm = Slurm()
        self.addCleanup(self.slurm.stop)
        self.slurm.begin()
        self.held = {}   # node: (shard, process), stopped where it is: none ends by itself

    def hold(self):
        """The first (shard, process) of each node, once every node has had one."""
        for shard, processes in self.shards_at_work().items():
            for process in processes:
                node = variable(process, "SLURMD_NODENAME")
                if node in PORTS and node not in self.held:
                    try:
                        os.kill(process, signal.SIGSTOP)
                    except ProcessLookupError:
                        continue
                    self.held[node] = shard, process
        return self.held if set(PORTS) <= set(self.held) else None

    def test_a_sweep(self):
        """A job is cancelled. A node is cut off but works on: its job starts again on the other one and
        both write."""
        run = self.start(self.sweep(), *SNAKEMAKE)
        work = self.wait_for(run, self.hold, "both nodes worked")
        units = self.folder / "out" / "units"
        self.wait_for(run, lambda: any(units.glob("*.nc")), "a unit was finished")
        subprocess.run(["scancel", variable(work["left"][1], "SLURM_JOB_ID")], check=True)
        shard, old = work["right"]
        self.slurm.cut_off("right")
        self.wait_for(run, lambda: set(self.shards_at_work().get(shard, [])) - {old},
                      "the lost job started again")
        os.kill(old, signal.SIGCONT)
        self.assertIn("SLURM status is: 'CANCELLED'", self.finish(run))
        self.check_sweep()

    def test_a_study(self):
        """A job is killed by a signal, and a node is lost with all that runs there. Slurm starts nothing
        again by itself: Snakemake does."""
        run = self.start(self.study(3), "--slurm-no-requeue", *SNAKEMAKE, "gres=gpu:1")
        work = self.wait_for(run, self.hold, "both nodes worked")
        os.kill(work["left"][1], signal.SIGKILL)
        self.slurm.lose("right")
        text = self.finish(run)
        for status in ("'FAILED'", "'NODE_FAIL'"):
            self.assertIn(f"SLURM status is: {status}", text)
        self.check_study()


class ContainersTest(Workflow):
    def test_processes_of_one_id_write_the_same_file(self):
        """As in two containers, where each is process 1."""
        synth = ["synth", "--prompt", "1024", "--num-layers", "8", "--overwrite", "-o"]
        kvsim(*synth, self.folder / "whole.h5")
        command = ["unshare", "--pid", "--fork", "--kill-child", KVSIM, *synth, self.folder / "one.h5"]
        for run in [subprocess.Popen(command) for _ in range(2)]:
            self.assertEqual(run.wait(), 0)
        self.assertEqual((self.folder / "whole.h5").read_bytes(), (self.folder / "one.h5").read_bytes())


if __name__ == "__main__":
    unittest.main()
