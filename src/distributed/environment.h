// Who this process is among the ranks of a job, read from the environment that torchrun, accelerate, Slurm,
// mpirun, a Kubernetes PyTorchJob or `flowshard launch` set.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace flowshard::distributed {

/// Value of an environment variable; nothing if it is not set.
using VariableReader = std::function<std::optional<std::string>(const std::string& name)>;

struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // index of this rank's GPU on its host
  int local_world_size = 1;
  std::string master_addr;  // empty for a job of one process
  int master_port = 0;
  bool use_agent_store = false;  // the launcher already runs the store (TORCHELASTIC_USE_AGENT_STORE)
  int master_listen_fd =
      -1;              // rank 0 under `flowshard launch`: the socket that already listens on master_port
  std::string job_id;  // equal on all ranks, different for jobs that share a host; prefixes store keys

  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, ..., or the variables of mpirun, or of an srun step. With none of
  /// them set: one process. Throws ConfigError that names the variable if some are set and others missing,
  /// not numbers, out of range or in contradiction to what the launcher set: never a quiet single-process
  /// run.
  static Environment from_variables();
  static Environment from_variables(const VariableReader& read);
};

/// The index of this rank's GPU among the `num_visible` ones. Throws ConfigError if it has none.
int gpu_of(const Environment& environment, int num_visible);

}  // namespace flowshard::distributed
