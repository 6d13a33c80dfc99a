// LibTorch's log, which goes to stderr. c10d logs each failed attempt to connect, with a backtrace, although
// our error says it all.
#pragma once

namespace flowshard::distributed {

/// Drops the log until it is destroyed, unless TORCH_CPP_LOG_LEVEL asks for it.
class QuietLog {
 public:
  QuietLog();
  ~QuietLog();
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

  void keep() { usual_level_ = quiet_level_; }  // quiet until the process ends

 private:
  int quiet_level_, usual_level_;
};

}  // namespace flowshard::distributed
