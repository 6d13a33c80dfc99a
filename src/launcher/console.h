// The launcher's own output, shared by the ranks: whole lines, and the progress bar of rank 0 where there is
// a terminal.
#pragma once

#include <string>
#include <string_view>

namespace flowshard::launcher {

class Console {
 public:
  Console(int out, int err) : out_(out), err_(err) {}

  enum class Stream { kOut, kErr };

  bool is_terminal(Stream stream) const;

  /// Writes `text` and a line end. A line that rank 0 has begun on a terminal is moved below it.
  void line(Stream stream, std::string_view text);

  /// Writes rank 0's bytes as they are: it owns the terminal.
  void raw(Stream stream, std::string_view bytes);

 private:
  int fd(Stream stream) const { return stream == Stream::kOut ? out_ : err_; }

  int out_, err_;
  std::string open_line_;  // what rank 0 has written since the last line end
  Stream open_stream_ = Stream::kErr;
};

/// Collects what one rank writes to one stream and passes it on to the console, as lines after a prefix or
/// raw.
class RankStream {
 public:
  RankStream(Console& console, Console::Stream stream, std::string prefix, bool raw)
      : console_(console), stream_(stream), prefix_(std::move(prefix)), raw_(raw) {}

  void feed(std::string_view bytes);
  void end();  // a line without its end is passed on too

  /// The last line that was not empty.
  const std::string& last_line() const { return last_line_; }

 private:
  void finish_line();

  Console& console_;
  Console::Stream stream_;
  std::string prefix_;
  bool raw_;
  std::string line_;
  std::string last_line_;
};

}  // namespace flowshard::launcher
