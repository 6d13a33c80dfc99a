#include "telemetry/metrics_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/standard_streams.h"

namespace flowshard::telemetry {
namespace {

using Json = nlohmann::ordered_json;

void put_number(Json& object, const std::string& name, double value) {
  if (std::isfinite(value)) {
    object[name] = value;
  } else {
    object[name] = nullptr;
    object["non_finite"][name] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
}

std::string line_of(const StepRecord& record) {
  Json object;
  object["step"] = record.step;
  object["samples_seen"] = record.samples_seen;
  put_number(object, "loss", record.loss);
  put_number(object, "grad_norm", record.grad_norm);
  put_number(object, "lr", record.lr);
  put_number(object, "step_seconds", record.step_seconds);
  for (const auto& [name, value] : record.extras) put_number(object, name, value);
  return object.dump() + '\n';
}

/// The step of a line that write() wrote; -1 if it is no such line.
int64_t step_of(const std::string& line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step = object.is_object() ? object.find("step") : object.end();
  return step != object.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
}

struct Kept {
  int64_t size_bytes = 0;
  int64_t last_step = 0;
};

/// How much of the file a run that continues after `resume_step` keeps.
Kept kept_part(const std::filesystem::path& path, int64_t resume_step) {
  Kept kept;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  int64_t line_number = 0;
  while (resume_step > 0 && std::getline(file, line)) {
    if (file.eof()) break;  // no newline: a kill cut the line short
    ++line_number;
    const int64_t step = step_of(line);
    if (step > resume_step) break;
    if (step <= kept.last_step) {
      throw DataError("{}:{}: not the record of the next step; move the file away to go on without it",
                      path.string(), line_number);
    }
    kept.size_bytes += static_cast<int64_t>(line.size()) + 1;
    kept.last_step = step;
  }
  return kept;
}

// Of two runs in one folder each would cut off and mix up what the other writes. The kernel gives the lock
// back when the process ends, however it ends; a file system without locks cannot tell.
void lock(const FileDescriptor& file, const std::filesystem::path& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw ConfigError("{}: another run is writing it: wait for its end or choose another run.output_dir",
                      path.string());
  }
}

FileDescriptor open_alone(const std::filesystem::path& path) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) throw DataError("cannot write {}: {}", path.string(), error_text(errno));
  lock(file, path);
  return file;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& path, int64_t resume_step)
    : path_(path), file_(open_alone(path)) {
  const Kept kept = kept_part(path, resume_step);
  size_bytes_ = kept.size_bytes;
  last_step_ = kept.last_step;
  if (::ftruncate(file_.get(), size_bytes_) != 0) {
    throw DataError("cannot write {}: {}", path.string(), error_text(errno));
  }
}

// The checkpoints of a run go to its folder by name. Its records follow them there when somebody moves or
// removes the folder or the file.
void MetricsWriter::follow_path(int64_t step) {
  struct stat own {
  }, named{};
  if (::fstat(file_.get(), &own) != 0) return;
  if (::stat(path_.c_str(), &named) == 0 && named.st_dev == own.st_dev && named.st_ino == own.st_ino) return;
  print_line("flowshard train: warning: {} was moved or removed: from step {} on it is a new file",
             path_.string(), step);
  std::error_code ignored;  // then it cannot be opened either
  std::filesystem::create_directories(path_.parent_path(), ignored);
  file_ = open_alone(path_);
  size_bytes_ = ::fstat(file_.get(), &own) == 0 ? own.st_size : 0;
}

void MetricsWriter::write(const StepRecord& record) {
  check(record.step > last_step_, "steps are recorded in order");
  follow_path(record.step);
  const std::string line = line_of(record);
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(file_.get(), line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      // What part of the line fitted goes again. If even that fails, the next writer drops the torn line.
      [[maybe_unused]] const int result = ::ftruncate(file_.get(), size_bytes_);
      throw DataError("cannot write {}: {}", path_.string(), error_text(error));
    }
    written += static_cast<size_t>(count);
  }
  size_bytes_ += static_cast<int64_t>(line.size());
  last_step_ = record.step;
}

}  // namespace flowshard::telemetry
