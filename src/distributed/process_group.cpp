#include "distributed/process_group.h"

#include <c10/util/Logging.h>

#include <cstdlib>

#include "core/error.h"
#include "distributed/address.h"
#include "distributed/connect.h"
#include "distributed/local_group.h"
#include "distributed/rendezvous.h"

namespace flowshard::distributed {

namespace {

// c10d logs each failed attempt to connect, with a backtrace, although the error says it all.
// TORCH_CPP_LOG_LEVEL brings the log back.
class QuietConnecting {
 public:
  QuietConnecting() {
    if (std::getenv("TORCH_CPP_LOG_LEVEL")) {
      c10::initLogging();
    } else {
      FLAGS_caffe2_log_level = c10::GLOG_FATAL;
    }
  }
  ~QuietConnecting() {
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) {
      FLAGS_caffe2_log_level = usual_level_;
    }
  }

 private:
  int usual_level_ = FLAGS_caffe2_log_level;
};

}  // namespace

std::unique_ptr<ProcessGroup> ProcessGroup::create(const Environment& environment, at::Device device,
                                                   std::chrono::seconds timeout) {
  if (environment.world_size == 1) {
    return make_local_group();
  }
  const QuietConnecting quiet;
  const Meeting meeting = meet(environment, timeout);
  const bool several_hosts = environment.local_world_size < environment.world_size;
  return connect({.store = meeting.store,
                  .rank = environment.rank,
                  .world_size = environment.world_size,
                  .device = device,
                  .timeout = timeout,
                  .local_address = reachable_address(meeting.local_address, several_hosts)});
}

}  // namespace flowshard::distributed
