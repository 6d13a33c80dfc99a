"""A Slurm of two nodes on this machine, with its own munge: real daemons in a folder, ended by their process ids."""
import contextlib
import os
import shutil
import socket
import subprocess
import time

from processes import environment, eventually, free_port, start

DAEMONS = ["slurmctld", "slurmd", "munged"]

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
SwitchType=switch/none
KillWait=15
JobRequeue=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=1 RealMemory=1000 State=UNKNOWN
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000 State=UNKNOWN
"""


def why_not():
    """The reason why no cluster can be had here; empty if it can."""
    missing = [name for name in DAEMONS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    return f"{missing[0]} is not installed" if missing else "" if os.getuid() == 0 else "Slurm's daemons need root"


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.host = socket.gethostname().split(".")[0]
        self.nodes = ["127.0.0.1", "127.0.0.2"]  # names that resolve, as those of a real cluster do
        self.daemons = []
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=self.host, nodes=self.nodes,
                                                         controller_port=free_port(), ports=[free_port(), free_port()]))

    def __enter__(self):
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.__exit__)
            key = self.folder / "munge.key"
            key.write_bytes(os.urandom(128))
            key.chmod(0o600)
            files = {"key": key, "socket": "munge.socket", "pid": "munge.pid", "log": "munge.log", "seed": "munge.seed"}
            self.start("munged", "--force", "--foreground",
                       *(f"--{name}{'' if name == 'socket' else '-file'}={self.folder / path}" for name, path in files.items()))
            eventually((self.folder / "munge.socket").exists, "munged", 20)
            self.start("slurmctld", "-D")
            for node in self.nodes:
                self.start("slurmd", "-D", "-N", node)
            eventually(self.has_two_idle_nodes, "two idle nodes", 60)
            on_failure.pop_all()
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()

    def has_two_idle_nodes(self):
        assert all(daemon.poll() is None for daemon in self.daemons), f"a daemon has ended: see {self.folder}"
        return self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"]

    def environment(self, **variables):
        return environment(SLURM_CONF=self.folder / "slurm.conf", **variables)

    def start(self, program, *arguments):
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        with open(self.folder / f"{program}.out", "a") as output:
            self.daemons.append(subprocess.Popen([path, *arguments], env=self.environment(), stdout=output, stderr=output))

    def ask(self, *command):
        done = subprocess.run([*map(str, command)], env=self.environment(), capture_output=True, text=True, timeout=60)
        return done.stdout

    def srun(self, folder, *arguments, **variables):
        return start(folder, "srun", *arguments, SLURM_CONF=self.folder / "slurm.conf", **variables)

    def sbatch(self, folder, *arguments, **variables):
        """The number of the new job."""
        done = subprocess.run(["sbatch", "--parsable", *map(str, arguments)], cwd=folder, env=self.environment(**variables),
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job):
        return self.ask("squeue", "-h", "-o", "%T", "-j", job).strip()

    def wait_for_end(self, job, seconds):
        deadline = time.monotonic() + seconds
        while self.state(job) not in ("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"):
            assert time.monotonic() < deadline, f"job {job} is {self.state(job)} after {seconds} s"
            time.sleep(0.5)
