#include "launcher/console.h"

#include <unistd.h>

#include <cerrno>

namespace flowshard::launcher {

namespace {

constexpr size_t kLongestLine = 1 << 20;
constexpr std::string_view kEraseLine = "\r\x1b[K";

// An output that is closed or full loses the text; the ranks go on.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return;
    }
    text.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
  }
}

}  // namespace

bool Console::is_terminal(Stream stream) const { return isatty(fd(stream)) == 1; }

void Console::line(Stream stream, std::string_view text) {
  if (!open_line_.empty()) {
    write_all(fd(open_stream_), kEraseLine);
  }
  write_all(fd(stream), std::string(text) + '\n');
  write_all(fd(open_stream_), open_line_);
}

void Console::raw(Stream stream, std::string_view bytes) {
  write_all(fd(stream), bytes);
  const size_t line_end = bytes.find_last_of("\r\n");
  if (line_end != std::string_view::npos) {
    open_line_.clear();
    bytes.remove_prefix(line_end + 1);
  }
  open_line_ += bytes;
  open_stream_ = stream;
}

void RankStream::feed(std::string_view bytes) {
  if (raw_) {
    console_.raw(stream_, bytes);
  }
  for (const char byte : bytes) {
    if (byte == '\n' || line_.size() == kLongestLine) {
      finish_line();
    }
    if (byte != '\n') {
      line_ += byte;
    }
  }
}

void RankStream::end() {
  if (!line_.empty()) {
    finish_line();
  }
}

void RankStream::finish_line() {
  // Of a line that was drawn several times, as a progress bar is, the last state.
  if (line_.ends_with('\r')) {
    line_.pop_back();
  }
  line_.erase(0, line_.rfind('\r') + 1);
  if (!raw_) {
    console_.line(stream_, prefix_ + line_);
  }
  if (!line_.empty()) {
    last_line_ = line_;
  }
  line_.clear();
}

}  // namespace flowshard::launcher
