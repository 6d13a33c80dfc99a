#include "distributed/quiet.h"

#include <c10/util/Logging.h>

#include <cstdlib>

namespace flowshard::distributed {

QuietLog::QuietLog() : usual_level_(FLAGS_caffe2_log_level) {
  if (std::getenv("TORCH_CPP_LOG_LEVEL")) {
    c10::initLogging();
    usual_level_ = FLAGS_caffe2_log_level;
    quiet_level_ = usual_level_;
  } else {
    quiet_level_ = c10::GLOG_FATAL;
  }
  FLAGS_caffe2_log_level = quiet_level_;
}

QuietLog::~QuietLog() { FLAGS_caffe2_log_level = usual_level_; }

}  // namespace flowshard::distributed
