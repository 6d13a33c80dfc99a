// The environment of a process that mpirun started: Open MPI's OMPI_COMM_WORLD_* variables, or those of
// Hydra, the launcher of MPICH and Intel MPI (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS). mpirun
// names the ranks but no meeting point: MASTER_ADDR and MASTER_PORT must be set.
#pragma once

#include "distributed/environment.h"
#include "distributed/variables.h"

namespace flowshard::distributed {

/// srun --mpi=pmi2 sets some of Hydra's variables too: such a process is a task of srun.
bool is_mpi_process(const Variables& variables);

Environment environment_of_mpi_process(const Variables& variables);

}  // namespace flowshard::distributed
