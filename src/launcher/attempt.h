// One attempt at a job: all ranks of this host, from their start until the last has ended.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/console.h"
#include "launcher/launch.h"
#include "launcher/process.h"
#include "launcher/signals.h"

namespace flowshard::launcher {

struct RankPlan {
  int rank = 0;
  std::vector<std::string> environment;
  int inherited_fd = -1;
};

struct AttemptResult {
  struct Failure {
    int rank = 0;
    ExitStatus status;
    std::string last_line;  // of its stderr
  };
  std::optional<Failure> failure;  // the first, or the one that explains the others
  bool stopped_by_signal = false;  // by one that the launcher received
};

class Attempt {
 public:
  /// Starts the ranks. Throws ConfigError if one cannot be executed; those already running are ended then.
  Attempt(const LaunchOptions& options, const std::vector<RankPlan>& plans, Console& console);

  /// Passes output and signals on until no rank is left.
  AttemptResult run(SignalReader& signals);

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    Rank(int number, const ProcessOptions& options, Console& console, bool raw_out, bool raw_err);
    int number;
    Process process;
    RankStream out, err;
    bool out_open = true, err_open = true;
    bool running = true;
  };

  void wait(const SignalReader& signals) const;
  void relay_output();
  void take(int signal);
  void reap();
  void enforce_deadlines();
  void stop(int signal);
  void kill();
  void send(int signal);
  bool any_running() const;
  AttemptResult::Failure blamed() const;

  std::chrono::milliseconds grace_;
  Console& console_;
  std::deque<Rank> ranks_;
  std::vector<AttemptResult::Failure> failures_;  // in the order in which they were seen, before the stop
  std::optional<Clock::time_point> stop_at_;      // when the other ranks are told to end
  std::optional<Clock::time_point> kill_at_;
  bool stopped_by_signal_ = false;
  bool killed_ = false;
};

}  // namespace flowshard::launcher
