// SIGTERM and SIGINT as a request: training ends after the step it is in, with a checkpoint. One at a time.
#pragma once

namespace flowshard::training {

class StopRequest {
 public:
  /// From now on the first SIGTERM or SIGINT is noted; a second one ends the process as usual.
  StopRequest();
  /// The signals do again what they did before.
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// The signal that came; 0 if none did.
  static int signal();
};

}  // namespace flowshard::training
