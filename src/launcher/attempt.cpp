#include "launcher/attempt.h"

#include <poll.h>

#include <algorithm>

#include "core/error.h"

namespace flowshard::launcher {

namespace {

using std::chrono::milliseconds;

// A rank that lost its peers ends with this code: give the peer that is at fault the time to end too.
constexpr int kLostPeers = static_cast<int>(ExitCode::kCommunication);
constexpr milliseconds kBlameDelay(2000);
constexpr milliseconds kKillLimit(5000);  // a process stuck in the kernel does not even end by SIGKILL
constexpr int kReadsInARow = 64;  // so that a rank that writes without end does not keep the others waiting

// Reads what there is; false at the end of the stream. A terminal reports its end as an error.
bool relay(int fd, RankStream& stream) {
  char bytes[1 << 16];
  for (int i = 0; i < kReadsInARow; ++i) {
    const ssize_t count = read(fd, bytes, sizeof(bytes));
    if (count > 0) {
      stream.feed({bytes, static_cast<size_t>(count)});
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      stream.end();
      return false;
    } else if (errno == EAGAIN) {
      return true;
    }
  }
  return true;
}

std::string prefix_of(int rank) { return rank == 0 ? "" : fmt::format("[rank {}] ", rank); }

}  // namespace

Attempt::Rank::Rank(int rank, const ProcessOptions& options, Console& console, bool raw_out, bool raw_err)
    : number(rank),
      process(options),
      out(console, Console::Stream::kOut, prefix_of(rank), raw_out),
      err(console, Console::Stream::kErr, prefix_of(rank), raw_err) {}

Attempt::Attempt(const LaunchOptions& options, const std::vector<RankPlan>& plans, Console& console)
    : grace_(options.grace), console_(console) {
  for (const RankPlan& plan : plans) {
    const bool raw_out = plan.rank == 0 && console.is_terminal(Console::Stream::kOut);
    const bool raw_err = plan.rank == 0 && console.is_terminal(Console::Stream::kErr);
    const ProcessOptions process{.program = options.program,
                                 .command = options.command,
                                 .environment = plan.environment,
                                 .terminal_out = raw_out,
                                 .terminal_err = raw_err,
                                 .inherited_fd = plan.inherited_fd};
    ranks_.emplace_back(plan.rank, process, console, raw_out, raw_err);
  }
}

AttemptResult Attempt::run(SignalReader& signals) {
  while (any_running()) {
    wait(signals);
    relay_output();
    while (const std::optional<int> signal = signals.next()) {
      take(*signal);
    }
    reap();
    enforce_deadlines();
  }
  relay_output();
  for (Rank& rank : ranks_) {  // a stream may still be held open by a process that outlived its rank
    rank.out.end();
    rank.err.end();
  }
  AttemptResult result{.failure = std::nullopt, .stopped_by_signal = stopped_by_signal_};
  if (!failures_.empty()) {
    result.failure = blamed();
    const auto rank = std::ranges::find(ranks_, result.failure->rank, &Rank::number);
    result.failure->last_line = rank->err.last_line();
  }
  return result;
}

void Attempt::wait(const SignalReader& signals) const {
  std::vector<pollfd> waiting{{signals.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    if (rank.out_open) {
      waiting.push_back({rank.process.out(), POLLIN, 0});
    }
    if (rank.err_open) {
      waiting.push_back({rank.process.err(), POLLIN, 0});
    }
  }
  const auto deadline = kill_at_ ? kill_at_ : stop_at_;
  milliseconds left(-1);
  if (deadline) {
    left = std::max(milliseconds(0), std::chrono::ceil<milliseconds>(*deadline - Clock::now()));
  }
  poll(waiting.data(), waiting.size(), static_cast<int>(left.count()));
}

void Attempt::relay_output() {
  for (Rank& rank : ranks_) {
    rank.out_open = rank.out_open && relay(rank.process.out(), rank.out);
    rank.err_open = rank.err_open && relay(rank.process.err(), rank.err);
  }
}

void Attempt::take(int signal) {
  if (signal == SIGCHLD) {
    return;  // reap() looks at every rank
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    send(signal);
    return;
  }
  if (stopped_by_signal_) {  // asked twice
    kill_at_ = Clock::now();
    return;
  }
  stopped_by_signal_ = true;
  stop(signal);
}

void Attempt::reap() {
  for (Rank& rank : ranks_) {
    const std::optional<ExitStatus> status = rank.running ? rank.process.poll() : std::nullopt;
    if (!status) {
      continue;
    }
    rank.running = false;
    // What ends after the stop is no news, unless the stop came from outside and this is how the job took it.
    if (status->code != 0 && (!kill_at_ || stopped_by_signal_)) {
      failures_.push_back({rank.number, *status, ""});
      const auto delay = status->code == kLostPeers ? kBlameDelay : milliseconds(0);
      stop_at_ = std::min(stop_at_.value_or(Clock::time_point::max()), Clock::now() + delay);
    }
  }
}

void Attempt::enforce_deadlines() {
  if (!any_running()) {
    return;
  }
  if (kill_at_) {
    if (Clock::now() >= *kill_at_) {
      kill();
    }
  } else if (stop_at_ && Clock::now() >= *stop_at_) {
    const AttemptResult::Failure first = blamed();
    console_.line(Console::Stream::kErr, fmt::format("flowshard launch: rank {} {}: stopping the other ranks",
                                                     first.rank, first.status.words()));
    stop(SIGTERM);
  }
}

void Attempt::stop(int signal) {
  kill_at_ = Clock::now() + grace_;
  send(signal);
  send(SIGCONT);  // one that was stopped can end too
}

void Attempt::kill() {
  for (Rank& rank : ranks_) {
    if (rank.running) {
      console_.line(Console::Stream::kErr,
                    fmt::format("flowshard launch: rank {} (process {}) {}", rank.number, rank.process.pid(),
                                killed_ ? "cannot be killed: left behind" : "did not end in time: killed"));
      rank.running = !killed_;
    }
  }
  send(SIGKILL);
  killed_ = true;
  kill_at_ = Clock::now() + std::max(grace_, kKillLimit);
}

void Attempt::send(int signal) {
  for (Rank& rank : ranks_) {
    if (rank.running) {
      rank.process.send(signal);
    }
  }
}

bool Attempt::any_running() const { return std::ranges::any_of(ranks_, &Rank::running); }

AttemptResult::Failure Attempt::blamed() const {
  const auto cause =
      std::ranges::find_if(failures_, [](const auto& failure) { return failure.status.code != kLostPeers; });
  return cause == failures_.end() ? failures_.front() : *cause;
}

}  // namespace flowshard::launcher
