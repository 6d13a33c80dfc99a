#include "core/error_context.h"

#include "core/error.h"

namespace flowshard {

void rethrow_within(std::string_view context) {
  try {
    throw;
  } catch (const ConfigError& error) {
    throw ConfigError("{}: {}", context, error.what());
  } catch (const DataError& error) {
    throw DataError("{}: {}", context, error.what());
  } catch (const CommError& error) {
    throw CommError("{}: {}", context, error.what());
  } catch (const CheckpointError& error) {
    throw CheckpointError("{}: {}", context, error.what());
  }
}

}  // namespace flowshard
