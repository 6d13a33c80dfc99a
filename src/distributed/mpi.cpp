#include "distributed/mpi.h"

#include <limits>

#include "core/error.h"

namespace flowshard::distributed {

namespace {

constexpr int kAny = std::numeric_limits<int>::max();

struct Names {
  const char *rank, *size, *local_rank, *local_size;
};

constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                         "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kHydra{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

}  // namespace

bool is_mpi_process(const Variables& variables) {
  return variables.has(kOpenMpi.rank) || variables.has(kHydra.local_rank);
}

Environment environment_of_mpi_process(const Variables& variables) {
  const Names& names = variables.has(kOpenMpi.rank) ? kOpenMpi : kHydra;
  Environment environment;
  environment.world_size = variables.number(names.size, 1, kAny);
  environment.rank = variables.number(names.rank, 0, environment.world_size - 1);
  if (environment.world_size == 1) {
    return environment;
  }
  environment.local_world_size = variables.number(names.local_size, 1, environment.world_size);
  environment.local_rank = variables.number(names.local_rank, 0, environment.local_world_size - 1);
  if (!variables.has("MASTER_ADDR") || !variables.has("MASTER_PORT")) {
    throw ConfigError(
        "mpirun started {} ranks, but MASTER_ADDR and MASTER_PORT do not say where they meet: set them to "
        "the "
        "host of rank 0 and a free port there (Open MPI: mpirun -x MASTER_ADDR=... -x MASTER_PORT=29500; "
        "MPICH "
        "and Intel MPI: -genv MASTER_ADDR ... -genv MASTER_PORT 29500)",
        environment.world_size);
  }
  environment.master_addr = variables.text("MASTER_ADDR");
  environment.master_port = variables.number("MASTER_PORT", 1, 65535);
  environment.job_id =
      fmt::format("mpi-{}", variables.has("PMIX_NAMESPACE") ? variables.text("PMIX_NAMESPACE") : "none");
  return environment;
}

}  // namespace flowshard::distributed
