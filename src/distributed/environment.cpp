#include "distributed/environment.h"

#include <array>
#include <cstdlib>
#include <limits>

#include "core/error.h"
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

}  // namespace

Environment Environment::from_variables() { return from_variables(read_process_variable); }

Environment Environment::from_variables(const VariableReader& read) {
  const Variables variables(read);
  if (variables.has("RANK") && variables.has("WORLD_SIZE")) {
    return environment_of_torchrun(variables);
  }
  const bool in_srun = variables.has("SLURM_STEP_ID") && variables.has("SLURM_PROCID");
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    const bool for_srun = in_srun && std::string_view(name).starts_with("MASTER_");
    if (variables.has(name) && !for_srun) {
      throw ConfigError(
          "the environment variable {} is set, but {} is not: start every rank with RANK and WORLD_SIZE "
          "(torchrun, "
          "flowshard launch), or unset {} to run one process",
          name, variables.has("RANK") ? "WORLD_SIZE" : "RANK", name);
    }
  }
  if (in_srun) {
    return environment_of_slurm_task(variables);
  }
  if (variables.has("SLURM_NTASKS") && variables.number("SLURM_NTASKS", 1, kAny) > 1) {
    throw ConfigError(
        "SLURM_NTASKS={} but srun did not start this process: start it with srun, or unset SLURM_NTASKS to "
        "run one "
        "process",
        variables.text("SLURM_NTASKS"));
  }
  return Environment();
}

}  // namespace flowshard::distributed
