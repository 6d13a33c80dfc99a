// The environment of a task that srun started. srun names the ranks but no meeting point: MASTER_ADDR and
// MASTER_PORT are taken when set, otherwise the first host of the step and a port made from the job's number.
#pragma once

#include "distributed/environment.h"
#include "distributed/variables.h"

namespace flowshard::distributed {

Environment environment_of_slurm_task(const Variables& variables);

/// "gpu[07-09,12],login" -> "gpu07"
std::string first_host(const std::string& node_list);

/// Tasks on node `node` of "2(x3),1": 2, 2, 2, 1. Throws ConfigError on any other form.
int tasks_on_node(const std::string& tasks_per_node, int node);

}  // namespace flowshard::distributed
