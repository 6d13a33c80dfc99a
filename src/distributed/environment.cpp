#include "distributed/environment.h"

#include <cstdlib>
#include <limits>

#include "core/error.h"
#include "distributed/mpi.h"
#include "distributed/slurm.h"
#include "distributed/variables.h"

namespace flowshard::distributed {

namespace {

constexpr int kAny = std::numeric_limits<int>::max();

std::optional<std::string> read_process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

// torchrun's variables. LOCAL_RANK and LOCAL_WORLD_SIZE may both be absent: one process a host, as a
// Kubernetes PyTorchJob starts it.
Environment environment_of_torchrun(const Variables& variables) {
  Environment environment;
  environment.world_size = variables.number("WORLD_SIZE", 1, kAny);
  environment.rank = variables.number("RANK", 0, environment.world_size - 1);
  if (variables.has("LOCAL_RANK") || variables.has("LOCAL_WORLD_SIZE")) {
    environment.local_world_size = variables.number("LOCAL_WORLD_SIZE", 1, environment.world_size);
    environment.local_rank = variables.number("LOCAL_RANK", 0, environment.local_world_size - 1);
  }
  if (environment.world_size == 1) {
    return environment;
  }
  environment.master_addr = variables.text("MASTER_ADDR");
  environment.master_port = variables.number("MASTER_PORT", 1, 65535);
  environment.use_agent_store = variables.flag("TORCHELASTIC_USE_AGENT_STORE");
  if (environment.rank == 0 && variables.has("FLOWSHARD_MASTER_LISTEN_FD")) {
    environment.master_listen_fd = variables.number("FLOWSHARD_MASTER_LISTEN_FD", 3, kAny);
  }
  environment.job_id = variables.has("TORCHELASTIC_RUN_ID") ? variables.text("TORCHELASTIC_RUN_ID") : "none";
  return environment;
}

bool is_srun_task(const Variables& variables) {
  return variables.has("SLURM_STEP_ID") && variables.has("SLURM_PROCID");
}

// RANK was set by hand, not by a launcher in between, inside a job whose processes are numbered already.
void require_agreement(const Variables& variables, const char* rank_name, const char* size_name) {
  const std::string size = variables.text(size_name), rank = variables.text(rank_name);
  if (size != "1" && (size != variables.text("WORLD_SIZE") || rank != variables.text("RANK"))) {
    throw ConfigError(
        "RANK={} of WORLD_SIZE={}, but {}={} of {}={}: unset RANK and WORLD_SIZE, or start one torchrun or "
        "flowshard launch a node",
        variables.text("RANK"), variables.text("WORLD_SIZE"), rank_name, rank, size_name, size);
  }
}

void require_agreement(const Variables& variables) {
  if (variables.has("TORCHELASTIC_RUN_ID")) {
    return;  // torchrun, accelerate or flowshard launch, which may be what srun or mpirun started
  }
  if (variables.has("OMPI_COMM_WORLD_RANK")) {
    require_agreement(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  } else if (is_mpi_process(variables)) {
    require_agreement(variables, "PMI_RANK", "PMI_SIZE");
  } else if (is_srun_task(variables)) {
    require_agreement(variables, "SLURM_PROCID", "SLURM_NTASKS");
  }
  const std::string processes =
      variables.has("PET_NPROC_PER_NODE") ? variables.text("PET_NPROC_PER_NODE") : "1";
  if (!variables.has("LOCAL_RANK") && processes != "1" && processes != "auto") {
    throw ConfigError(
        "PET_NPROC_PER_NODE={}, but this is one process without LOCAL_RANK: let the pod run torchrun "
        "--no-python "
        "or flowshard launch, or ask for one process a pod",
        processes);
  }
}

// Variables that say that there are other processes, without those that say which of them this one is.
void refuse_half_an_environment(const Variables& variables, bool meets_at_master) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    const bool taken = meets_at_master && std::string_view(name).starts_with("MASTER_");
    if (variables.has(name) && !taken) {
      throw ConfigError(
          "the environment variable {} is set, but {} is not: start every rank with RANK and WORLD_SIZE "
          "(torchrun, flowshard launch), or unset {} to run one process",
          name, variables.has("RANK") ? "WORLD_SIZE" : "RANK", name);
    }
  }
}

void refuse_a_job_without_ranks(const Variables& variables) {
  for (const char* name : {"SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PET_NNODES"}) {
    if (variables.has(name) && variables.text(name) != "1") {
      throw ConfigError(
          "{}={}, but nothing says which rank this process is: start it with srun, mpirun, torchrun "
          "--no-python "
          "or flowshard launch, or unset {} to run one process",
          name, variables.text(name), name);
    }
  }
  for (const char* name : {"PMI_RANK", "PMIX_RANK"}) {
    if (variables.has(name) && !variables.has("PMI_SIZE")) {
      throw ConfigError(
          "{}={} is set, but no variable says how many ranks there are: set RANK and WORLD_SIZE too, or "
          "unset {} to run one process",
          name, variables.text(name), name);
    }
  }
}

}  // namespace

Environment Environment::from_variables() { return from_variables(read_process_variable); }

Environment Environment::from_variables(const VariableReader& read) {
  const Variables variables(read);
  if (variables.has("RANK") && variables.has("WORLD_SIZE")) {
    require_agreement(variables);
    return environment_of_torchrun(variables);
  }
  const bool in_mpi = is_mpi_process(variables), in_srun = is_srun_task(variables);
  refuse_half_an_environment(variables, in_mpi || in_srun);
  if (in_mpi) {
    return environment_of_mpi_process(variables);
  }
  if (in_srun) {
    return environment_of_slurm_task(variables);
  }
  refuse_a_job_without_ranks(variables);
  return Environment();
}

int gpu_of(const Environment& environment, int num_visible) {
  if (environment.local_rank >= num_visible) {
    throw ConfigError(
        "this is rank {} of its host, counted from 0, but {} GPU{} visible to it: let every rank see all "
        "GPUs of "
        "its host (CUDA_VISIBLE_DEVICES; srun without --gpus-per-task and --gpu-bind), or start fewer ranks "
        "a "
        "host",
        environment.local_rank, num_visible, num_visible == 1 ? " is" : "s are");
  }
  return environment.local_rank;
}

}  // namespace flowshard::distributed
