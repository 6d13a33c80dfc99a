// The group of a job of one process: every collective is a copy, or nothing at all.
#pragma once

#include "distributed/process_group.h"

namespace flowshard::distributed {

std::unique_ptr<ProcessGroup> make_local_group();

}  // namespace flowshard::distributed
