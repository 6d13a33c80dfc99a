"""The manifest of deploy/: what the training operator needs is there, and what its pods run works."""
import os

import yaml

from processes import end, free_port, start
from training_run import PROGRAM, ROOT, metrics

MANIFEST = ROOT / "deploy/kubernetes/train.yaml"
FIELDS = {  # of the API objects that the manifest uses, by the kind of object
    "job": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"runPolicy", "pytorchReplicaSpecs", "elasticPolicy", "nprocPerNode"},
    "run policy": {"backoffLimit", "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "suspend"},
    "replica": {"replicas", "restartPolicy", "template"},
    "pod": {"terminationGracePeriodSeconds", "containers", "volumes", "nodeSelector", "tolerations"},
    "container": {"name", "image", "command", "args", "ports", "resources", "volumeMounts", "env"},
}


def test_manifest_is_a_pytorch_job():
    job = yaml.safe_load(MANIFEST.read_text())
    assert set(job) <= FIELDS["job"] and (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert set(job["spec"]) <= FIELDS["spec"] and set(job["spec"]["runPolicy"]) <= FIELDS["run policy"]
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"} and replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        assert set(replica) == FIELDS["replica"] and replica["restartPolicy"] in ("OnFailure", "Always", "Never", "ExitCode")
        pod = replica["template"]["spec"]
        assert set(pod) <= FIELDS["pod"]
        [container] = pod["containers"]
        assert set(container) <= FIELDS["container"]
        assert container["name"] == "pytorch"  # the operator sets its variables in this one
        assert container["ports"] == [{"name": "pytorchjob-port", "containerPort": 23456}]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_pods_train_together(tiny_run):
    """Two pods of one core each, with the variables that the operator sets."""
    pod = yaml.safe_load(MANIFEST.read_text())["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    [container] = pod["containers"]
    script = container["args"][0].replace("/config/run.toml", "run.toml")
    world = {"WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "PET_NNODES": 2, "PET_NPROC_PER_NODE": "auto",
             "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    core = str(min(os.sched_getaffinity(0)))
    pods = [start(tiny_run, "taskset", "-c", core, *container["command"], script, RANK=rank, **world) for rank in (0, 1)]
    for process in pods:
        code, stderr = end(process)
        assert code == 0, stderr
    assert [record["samples_seen"] for record in metrics(tiny_run / "out/metrics.jsonl")] == [4, 8, 12, 16]
