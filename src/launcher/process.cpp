#include "launcher/process.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "core/error.h"

namespace flowshard::launcher {

namespace {

constexpr int kKillPolls = 200;
constexpr std::chrono::milliseconds kKillPollDelay(10);

struct Channel {
  FileDescriptor ours, child;
};

// A pipe, or a terminal of the size of ours that passes bytes on as they are.
Channel make_channel(bool terminal, int our_stream) {
  int ours = -1, child = -1;
  if (terminal) {
    winsize size{};
    termios raw{};
    ioctl(our_stream, TIOCGWINSZ, &size);
    tcgetattr(our_stream, &raw);
    cfmakeraw(&raw);
    if (openpty(&ours, &child, nullptr, &raw, &size) != 0) {
      throw ConfigError("cannot open a terminal for a rank: {}", error_text(errno));
    }
    fcntl(ours, F_SETFD, FD_CLOEXEC);
    fcntl(child, F_SETFD, FD_CLOEXEC);
  } else {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw ConfigError("cannot open a pipe for a rank: {}", error_text(errno));
    }
    ours = ends[0];
    child = ends[1];
  }
  fcntl(ours, F_SETFL, O_NONBLOCK);
  return {FileDescriptor(ours), FileDescriptor(child)};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) {
    result.push_back(const_cast<char*>(text.c_str()));  // exec does not write to them
  }
  result.push_back(nullptr);
  return result;
}

struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int out, err, failure, inherited_fd;
  pid_t launcher;
};

// Between fork and exec: calls only what a signal handler may call.
[[noreturn]] void become(const ChildPlan& plan) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.launcher) {
    _exit(1);  // it died before the line above
  }
  setpgid(0, 0);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(plan.out, STDOUT_FILENO);
  dup2(plan.err, STDERR_FILENO);
  if (plan.inherited_fd >= 0) {
    fcntl(plan.inherited_fd, F_SETFD, 0);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  // A job that a script puts into the background ignores SIGINT; the ranks must still hear what is forwarded.
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  execvpe(plan.program, plan.arguments, plan.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(plan.failure, &error, sizeof(error));
  _exit(127);
}

}  // namespace

std::string ExitStatus::words() const {
  if (signal == 0) {
    return fmt::format("exited with code {}", code);
  }
  const char* name = sigabbrev_np(signal);
  return fmt::format("was killed by signal {} ({})", signal, name ? name : "?");
}

Process::Process(const ProcessOptions& options) {
  Channel out = make_channel(options.terminal_out, STDOUT_FILENO);
  Channel err = make_channel(options.terminal_err, STDERR_FILENO);
  Channel failure = make_channel(false, -1);
  const std::vector<char*> arguments = pointers(options.command);
  const std::vector<char*> environment = pointers(options.environment);
  const ChildPlan plan{.program = options.program.c_str(),
                       .arguments = arguments.data(),
                       .environment = environment.data(),
                       .out = out.child.get(),
                       .err = err.child.get(),
                       .failure = failure.child.get(),
                       .inherited_fd = options.inherited_fd,
                       .launcher = getpid()};
  pid_ = fork();
  if (pid_ < 0) {
    throw ConfigError("cannot start {}: {}", options.program, error_text(errno));
  }
  if (pid_ == 0) {
    become(plan);
  }
  out_ = std::move(out.ours);
  err_ = std::move(err.ours);
  failure.child.close();
  // Ends when exec closes the other end, or brings the reason why it could not run.
  int error = 0;
  fcntl(failure.ours.get(), F_SETFL, 0);
  if (read(failure.ours.get(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(pid_, nullptr, 0);
    throw ConfigError("cannot start {}: {}", options.program, error_text(error));
  }
}

Process::~Process() {
  if (!poll()) {
    send(SIGKILL);
    for (int i = 0; i < kKillPolls && !poll(); ++i) {
      std::this_thread::sleep_for(kKillPollDelay);
    }
  }
}

std::optional<ExitStatus> Process::poll() {
  int raw = 0;
  if (!status_ && waitpid(pid_, &raw, WNOHANG) == pid_) {
    const int signal = WIFSIGNALED(raw) ? WTERMSIG(raw) : 0;
    status_ = ExitStatus{.code = signal ? 128 + signal : WEXITSTATUS(raw), .signal = signal};
    kill(-pid_, SIGKILL);  // what it started and left behind
  }
  return status_;
}

void Process::send(int signal) { kill(-pid_, signal); }

}  // namespace flowshard::launcher
