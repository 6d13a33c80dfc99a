// Who this process is among the ranks of a job, read from the environment that torchrun, accelerate, Slurm or
// `flowshard launch` set.
#pragma once

#include <string>

namespace flowshard::distributed {

struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // index of this rank's GPU on its host
  int local_world_size = 1;
  std::string master_addr;  // empty for a job of one process
  int master_port = 0;
  bool use_agent_store = false;  // the launcher already runs the store (TORCHELASTIC_USE_AGENT_STORE)
  std::string attempt;           // differs between restarts, equal on all ranks; prefixes every store key

  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, ..., or SLURM_PROCID and SLURM_NTASKS. With none of them set: one
  /// process. Throws ConfigError that names the variable if some are set and others missing, not numbers or
  /// out of range: never a quiet single-process run.
  static Environment from_variables();
};

}  // namespace flowshard::distributed
