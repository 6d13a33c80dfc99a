#include "training/stop_request.h"

#include <csignal>

namespace flowshard::training {
namespace {

volatile std::sig_atomic_t received = 0;  // a handler can reach nothing else

void note(int number) { received = number; }

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigaction(number, &action, nullptr);
}

}  // namespace

StopRequest::StopRequest() {
  received = 0;
  for (const int number : {SIGTERM, SIGINT}) handle(number, note);
}

StopRequest::~StopRequest() {
  for (const int number : {SIGTERM, SIGINT}) handle(number, SIG_DFL);
}

int StopRequest::signal() { return received; }

}  // namespace flowshard::training
